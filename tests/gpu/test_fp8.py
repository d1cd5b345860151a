"""On a GPU that multiplies in FP8: each recipe learns real text as bf16 does, resumes bitwise, goes with layouts, and
what a step takes is what was predicted.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from support.configurations import Configuration
from support.faults import Ranks
from support.fixtures import real_sentences, tokenize
from support.measured import Measured, Meter, gpu_name, needs_gpus, padded_vocab
from support.shipped import SHIPPED
from support.training import events, four_layer_job, largest_difference, layout, losses, make_run

from orchestrator.kernel_selection.experts import joins_expert_mlp
from orchestrator.planning.hardware import shipped
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.time.kernels.accesses import kernels_of
from orchestrator.planning.time.step import estimate_with
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job
from orchestrator.spec.sections.launch import GROUPED_PRODUCTS

__all__ = ["real_sentences"]

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

RECIPES = ("delayed", "tensorwise", "blockwise")
GIB = 2**30
STEPS, LAST = 200, 20
JOB = SHIPPED["gpt-1.7b"]
PACKAGES = ("asyncio", "email", "http", "importlib", "json", "logging", "multiprocessing", "unittest", "urllib", "xml")
"""Of the standard library, beside its modules."""
SMALL_TEXT = {
    "model": {"hidden_size": 512, "num_attention_heads": 8, "seq_length": 256, "vocab_size": None},
    "runtime": {"layers": "transformer_engine"},
}
SMALL = {"hidden_size": 512, "num_attention_heads": 8, "seq_length": 256, "vocab_size": 1000}
TP2 = layout(tp=2, sequence_parallel=True)
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2-sp": TP2,
    "pp2": layout(pp=2),
    "dp2": layout(dp=2),
    "cp2": layout(context_parallel_size=2),
    "pp2-interleaved": layout(pp=2, vp=2),
}
OF_SENTENCES: dict[str, Any] = {"hidden_size": 512, "num_attention_heads": 8, "seq_length": 256, "vocab_size": 320}
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # a model, and the layout that it is spread over
    "bert": ({**OF_SENTENCES, "architecture": "bert", "position_embedding_type": "learned_absolute"}, TP2),
    "t5": ({**OF_SENTENCES, "architecture": "t5", "num_layers": 2, "decoder_seq_length": 128}, layout(pp=2)),
    "experts": (
        {
            **{**SMALL, "add_bias_linear": False, "activation": "swiglu", "num_experts": 8, "moe_ffn_hidden_size": 512},
            **{"moe_aux_loss_coeff": 0.01, "moe_router_dtype": "fp32"},
        },
        layout(dp=2, expert_model_parallel_size=2),
    ),
}


@pytest.fixture(scope="module", autouse=True)
def multiplies_in_fp8() -> None:
    needs_gpus(1, "transformer_engine")
    device = shipped(gpu_name())
    if device is None or "fp8" not in device.peak_flops:
        pytest.skip(f"{gpu_name()} is not known to multiply in FP8")


def precision(recipe: str | None, **more: Any) -> dict[str, Any]:
    return {"dtype": "bf16", "fp8": None if recipe is None else {"recipe": recipe, **more}}


TE = {"layers": "transformer_engine"}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
RECOMPUTED: dict[str, dict[str, Any]] = {"full": FULL, "selective": {"recompute_granularity": "selective"}}


def learning_job(recipe: str | None, text: str) -> JobSpec:
    """gpt-1.7b on one GPU: of a model of four layers two runs in bf16 alone end 0.6 % apart."""
    changes = [
        f"name=fp8-{recipe or 'bf16'}",
        "runtime.layers=transformer_engine",
        "launch.gpus_per_node=1",
        "batch.micro_batch_size=4",
        "batch.global_batch_size=4",
        f"schedule.train_iters={STEPS}",
        "schedule.lr_warmup_iters=20",
        "tracking.mlflow=false",
        "data.random_tokens=false",
        f"data.blend=[{text}]",
        *([] if recipe is None else [f"precision.fp8.recipe={recipe}"]),
    ]
    return load_job([JOB], changes).job


def generating_job(text: str) -> JobSpec:
    data = {"random_tokens": False, "blend": [{"path": text}], "split": "90,10,0"}
    schedule = {"train_iters": 20}
    return four_layer_job("generating", **SMALL_TEXT, data=data, schedule=schedule, precision=precision("delayed"))


def small_job(name: str, recipe: str | None, **sections: Any) -> JobSpec:
    return four_layer_job(name, **{"model": SMALL, "precision": precision(recipe), "runtime": TE, **sections})


def dropping_job(name: str, recipe: str, **sections: Any) -> JobSpec:
    return small_job(
        name,
        recipe,
        model={**SMALL, "hidden_dropout": 0.1, "attention_dropout": 0.1},
        runtime={**TE, "deterministic": True},
        schedule={"train_iters": 60},
        checkpoint={"save_interval": 20},
        **sections,
    )


def recomputing_job(name: str, recipe: str, recompute: dict[str, Any]) -> JobSpec:
    return small_job(name, recipe, runtime={**TE, "deterministic": True, **recompute})


def family_jobs(family: str, sentences: str) -> list[JobSpec]:
    """A family in bf16 and FP8 on one GPU, and in FP8 on two."""
    model, parallelism = FAMILIES[family]
    data: dict[str, Any] = {"random_tokens": True}
    if family != "experts":
        data = {"blend": [{"path": sentences}], "random_tokens": False, "split": "90,10,0"}
        data["tokenizer"] = {"vocab_extra_ids": 20}
    kinds: dict[str, tuple[str | None, dict[str, Any]]] = {
        "bf16": (None, {}),
        "fp8": ("delayed", {}),
        "spread": ("delayed", parallelism),
    }
    return [
        small_job(f"{family}-{kind}", recipe, model=model, data=data, parallelism=degrees, optimizer={"lr": 1e-4})
        for kind, (recipe, degrees) in kinds.items()
    ]


def mixture_job(recipe: str | None) -> JobSpec:
    """4 layers of 32 experts as narrow as those of Qwen3-30B-A3B: 730 million parameters."""
    model = {
        **{"hidden_size": 2048, "num_attention_heads": 16, "seq_length": 2048, "vocab_size": 32000},
        **{"num_experts": 32, "moe_router_topk": 4, "moe_ffn_hidden_size": 768, "moe_router_dtype": "fp32"},
        **{"activation": "swiglu", "add_bias_linear": False, "normalization": "RMSNorm"},
    }
    batch, schedule = {"micro_batch_size": 2, "global_batch_size": 4}, {"train_iters": 10, "lr_warmup_iters": 2}
    name = f"mixture-{recipe or 'bf16'}"
    return small_job(name, recipe, model=model, batch=batch, schedule=schedule, optimizer={"lr": 1e-4})


def resuming_job(recipe: str | None, steps: int) -> JobSpec:
    return small_job(
        "resuming",
        recipe,
        model=FAMILIES["experts"][0],
        schedule={"train_iters": steps, "lr_decay_iters": 12, "lr_warmup_iters": 2},
        optimizer={"lr": 1e-4},
    )


def jobs(text: str) -> list[JobSpec]:
    """The jobs of this file in every recipe; `text` is the prefix of a data set."""
    families = [job for family in FAMILIES for job in family_jobs(family, text)]
    mixtures = [mixture_job(recipe) for recipe in (None, *RECIPES)]
    return [*families, *mixtures, resuming_job("delayed", 12)] + [
        job
        for recipe in RECIPES
        for job in (
            learning_job(recipe, text),
            dropping_job("whole", recipe),
            *(small_job(name, recipe, parallelism=parallelism) for name, parallelism in LAYOUTS.items()),
            *(recomputing_job(name, recipe, recompute) for name, recompute in RECOMPUTED.items()),
        )
    ]


@pytest.fixture(scope="module")
def much_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """So much source that nothing of it comes twice: what is learned by heart differs by more than 1 % for little."""
    library = Path(sysconfig.get_path("stdlib"))
    sources = [path for path in sorted(library.iterdir()) if path.suffix == ".py" or path.name in PACKAGES]
    return tokenize(sources, tmp_path_factory.mktemp("library") / "library", "--append-eod")


@pytest.fixture(scope="module")
def learned(ranks: Ranks, much_text: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measured]:
    """Each recipe, and bf16 alone, on the same batches of real text: side by side where there are GPUs."""
    trainer = Meter(ranks.starter, tmp_path_factory.mktemp("learned"), patience=250)
    return trainer.measure_all(learning_job(recipe, much_text) for recipe in (None, *RECIPES))


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_learns_as_bf16_does(recipe: str, learned: dict[str, Measured]) -> None:
    """Within 1 % after 200 steps: the mean loss of the last ones, on text that was never seen before."""
    ends = []
    for which in ("bf16", recipe):
        found = learned[f"fp8-{which}"]
        assert found.outcome == "measured", found.message
        assert found.layers == "transformer_engine"
        assert len(found.losses) == STEPS
        ends.append(statistics.mean(found.losses[-LAST:]))
        print(
            f"\nRESULT FP8 learning, {which}: first loss {found.losses[0]:.4f}, mean of the last {LAST} of "
            f"{STEPS} steps {ends[-1]:.4f}; median {1e3 * found.step_seconds:.0f} ms per step, "
            f"{max(found.peak_bytes) / GIB:.1f} GiB"
        )
        assert found.losses[0] - ends[-1] > 8, "it learns"
    difference = ends[1] / ends[0] - 1
    print(f"RESULT FP8 {recipe} against bf16 after {STEPS} steps: {difference:+.3%} (limit 1 %)")
    assert learned[f"fp8-{recipe}"].losses != learned["fp8-bf16"].losses, "it multiplied in FP8"
    assert abs(difference) < 0.01


def test_text_is_generated_from_a_checkpoint_in_fp8(ranks: Ranks, real_text: list[str], tmp_path: Path) -> None:
    """The scales in it are passed over: generation is in bf16 with the layers of torch."""
    job = generating_job(real_text[0])
    run = ranks.must_train(make_run(tmp_path, job), job)
    command = [sys.executable, "-m", "orchestrator.inference", str(run.path), "--prompt", "import "]
    command += ["--options", json.dumps({"max_new_tokens": 16, "temperature": 0}), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    print(f"\nRESULT generated from a checkpoint in FP8: {answer['text']!r}")
    assert answer["iteration"] == 20


@pytest.mark.parametrize("recipe", RECIPES)
def test_resume_is_bitwise(recipe: str, ranks: Ranks, tmp_path: Path) -> None:
    """With dropout and evaluations between: the scales are in the checkpoint, and an evaluation does not move them."""
    whole = dropping_job("whole", recipe)
    expected = losses(ranks.must_train(make_run(tmp_path, whole), whole))
    # Evaluations of one run only: they must not show.
    job = dropping_job("cut", recipe, evaluation={"eval_interval": 15, "eval_iters": 1})
    run = make_run(tmp_path, job)
    resumed = ranks.killed_and_resumed(run, job)
    found = losses(run)
    different = [step for step in expected if found[step] != expected[step]]
    print(f"\nRESULT FP8 {recipe} resumed from {resumed}: bitwise {not different}, differs at {different}")
    assert found == expected


def test_scales_are_what_a_checkpoint_adds(ranks: Ranks, tmp_path: Path) -> None:
    """Another recipe, and bf16, go on from it."""
    sections: dict[str, Any] = {
        "model": SMALL,
        "runtime": {"layers": "transformer_engine"},
        "checkpoint": {"save_interval": 10},
    }
    whole = four_layer_job("bf16", **sections, precision=precision(None), schedule={"train_iters": 40})
    expected = ranks.losses_of(whole, tmp_path)
    for steps, recipe in ((10, "delayed"), (20, "blockwise"), (30, None), (40, "delayed")):
        schedule = {"train_iters": steps, "lr_decay_iters": 40}
        job = four_layer_job("changed", **sections, precision=precision(recipe), schedule=schedule)
        run = ranks.must_train(make_run(tmp_path, job), job)
    difference = largest_difference(expected, losses(run))
    print(f"\nRESULT FP8 delayed, blockwise, bf16, delayed in turn against bf16: {difference:.2e}")
    assert difference < 1e-2


@pytest.fixture(scope="module", params=RECIPES)
def alone(
    request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[int, float]]:
    """A recipe, and the losses of one process with it."""
    recipe = str(request.param)
    return recipe, ranks.losses_of(small_job("one", recipe), tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_agree(name: str, alone: tuple[str, dict[int, float]], ranks: Ranks, tmp_path: Path) -> None:
    needs_gpus(2, "transformer_engine")
    recipe, one = alone
    found = ranks.losses_of(small_job(name, recipe, parallelism=LAYOUTS[name]), tmp_path)
    difference = largest_difference(one, found)
    print(f"\nRESULT FP8 {recipe} {name} largest relative difference {difference:.2e}")
    assert difference < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families(family: str, ranks: Ranks, real_sentences: str, tmp_path: Path) -> None:
    """Beside bf16, and spread over two GPUs beside one."""
    needs_gpus(2, "transformer_engine")
    plain, one, spread = (ranks.losses_of(job, tmp_path) for job in family_jobs(family, real_sentences))
    apart, between = largest_difference(plain, one), largest_difference(one, spread)
    print(f"\nRESULT FP8 {family} against bf16 {apart:.2e}, two GPUs against one {between:.2e}")
    assert one != plain, "it multiplied in FP8"
    assert apart < 1e-2
    assert between < 3e-3


@pytest.fixture(scope="module")
def mixtures(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measured]:
    """In bf16 and in each recipe, side by side where there are GPUs."""
    trainer = Meter(ranks.starter, tmp_path_factory.mktemp("mixtures"), patience=100)
    return trainer.measure_all(mixture_job(recipe) for recipe in (None, *RECIPES))


@pytest.mark.parametrize("recipe", RECIPES)
def test_small_experts_stay_in_bf16(recipe: str, mixtures: dict[str, Measured]) -> None:
    """And all else of their layers is in FP8: the losses of bf16 within 1 %, and the memory of the plan within 5 %."""
    job = mixture_job(recipe)
    assert joins_expert_mlp(job, "transformer_engine")
    plain, found = mixtures[mixture_job(None).name], mixtures[job.name]
    for each in (plain, found):
        assert each.outcome == "measured", each.message
    apart = largest_difference(dict(enumerate(plain.losses)), dict(enumerate(found.losses)))
    errors = []
    for which, measured in ((mixture_job(None), plain), (job, found)):
        [stage] = estimate_memory(which, padded_vocab(which), "transformer_engine").stages
        errors.append(stage.peak_bytes / max(measured.peak_bytes) - 1)
        print(
            f"\nRESULT FP8 {which.name}: {1e3 * measured.step_seconds:.0f} ms per step, peak "
            f"{max(measured.peak_bytes) / GIB:.2f} GiB, predicted {stage.peak_bytes / GIB:.2f} ({errors[-1]:+.2%})"
        )
    print(f"RESULT FP8 {job.name} against bf16: losses {apart:.2e}")
    assert found.losses != plain.losses, "attention multiplied in FP8"
    assert apart < 1e-2
    assert max(map(abs, errors)) < 0.05


def test_experts_go_on_from_checkpoints_with_scales_and_without(ranks: Ranks, tmp_path: Path) -> None:
    """A run whose experts were in FP8, by Transformer Engine's modules, goes on with ours in bf16, and back."""
    expected = ranks.losses_of(resuming_job(None, 12), tmp_path / "whole")
    for number, (steps, grouped) in enumerate(((3, "0"), (6, "1"), (9, "1"), (12, "0"))):
        job = resuming_job("delayed", steps)
        run = make_run(tmp_path / "changed", job)
        ranks.must_train(run, job, launch_id=str(number), env={GROUPED_PRODUCTS: grouped})
    assert [event["iteration"] for event in events(run, "resumed")] == [3, 6, 9]
    found = losses(run)
    difference = largest_difference(expected, found)
    print(f"\nRESULT FP8 experts by Transformer Engine, by ours twice, and by it again, against bf16: {difference:.2e}")
    assert found != expected
    assert difference < 1e-2


@pytest.mark.parametrize("recompute", RECOMPUTED)
@pytest.mark.parametrize("recipe", RECIPES)
def test_recomputation_changes_no_loss(recipe: str, recompute: str, ranks: Ranks, tmp_path: Path) -> None:
    kept = ranks.losses_of(recomputing_job("kept", recipe, {}), tmp_path)
    found = ranks.losses_of(recomputing_job("recomputed", recipe, RECOMPUTED[recompute]), tmp_path)
    difference = largest_difference(kept, found)
    print(f"\nRESULT FP8 {recipe} {recompute} recomputation: largest relative difference {difference:.2e}")
    assert difference < 1e-3


def test_first_and_last_layers_in_bf16(ranks: Ranks, tmp_path: Path) -> None:
    sections: dict[str, Any] = {"model": SMALL, "runtime": {"layers": "transformer_engine", "deterministic": True}}
    ends = {"num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 1}
    jobs = {"bf16": precision(None), "all": precision("tensorwise"), "between": precision("tensorwise", **ends)}
    curves = {
        name: ranks.losses_of(four_layer_job(name, **sections, precision=each), tmp_path) for name, each in jobs.items()
    }
    assert curves["between"] not in (curves["bf16"], curves["all"])
    difference = largest_difference(curves["bf16"], curves["between"])
    print(f"\nRESULT FP8 tensorwise with one layer at each end in bf16, against bf16: {difference:.2e}")
    assert difference < 5e-3


CONFIGURATIONS = tuple(
    Configuration("gpt-1.7b", 1, 4, 4, "transformer_engine", more=(f"precision.fp8.recipe={recipe}",))
    for recipe in RECIPES
)


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda each: each.name)
def test_time_and_memory_are_predicted(configuration: Configuration, measured: Measured) -> None:
    """The 1.7B model. Time is against the datasheet's efficiencies, which no run of this session has corrected."""
    job, layers = configuration.job, configuration.layers
    [memory] = estimate_memory(job, padded_vocab(job), layers).stages
    device = shipped(gpu_name())
    assert device is not None, f"no datasheet of {gpu_name()} is known"
    time = estimate_with(job, padded_vocab(job), kernels_of(job, layers), device)
    [peak], [reserved] = measured.peak_bytes, measured.reserved_bytes
    tokens = job.global_batch_size * job.model.sample_length
    parts = " ".join(f"{name}={1e3 * seconds:.0f}" for name, seconds in time.parts.items() if seconds >= 5e-4)
    memory_error, time_error = memory.peak_bytes / peak - 1, time.step_seconds / measured.step_seconds - 1
    print(
        f"\nRESULT FP8 {configuration.name}: {1e3 * measured.step_seconds:.0f} ms per step "
        f"({1e3 * measured.spread[0]:.0f}..{1e3 * measured.spread[1]:.0f}), predicted {1e3 * time.step_seconds:.0f} "
        f"({time_error:+.1%}); {tokens / measured.step_seconds:,.0f} tokens/s; peak {peak / GIB:.2f} GiB "
        f"(reserved {reserved / GIB:.2f}), predicted {memory.peak_bytes / GIB:.2f} ({memory_error:+.2%}); "
        f"predicted ms: {parts}"
    )
    assert abs(memory_error) < 0.05
    assert abs(time_error) < 0.15
