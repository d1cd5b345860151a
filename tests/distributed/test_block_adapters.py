"""Low-rank adapters beside the matrices of latent attention and of gated delta nets: from other weights, at another
layout, merged there, and gone on with. That layouts learn the same is in test_matrix.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed.test_lora import MERGED
from support.counting import COUNTED
from support.faults import UNSAVED, WEIGHTS_ALONE, Ranks
from support.matrix import FAMILIES
from support.trained_together import ResumedTogether, TrainedTogether
from support.training import events, layout, losses, make_run, tiny_job, values

from orchestrator.models.blocks.registry import LATENT
from orchestrator.planning.flops import model_flops
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("trains short runs of two models")]

STEPS = 3
MODELS = {name: {**FAMILIES[f"{name}-adapters"], "lora": None} for name in ("latent", "delta")}
EVALUATION = {"eval_interval": 100, "eval_iters": 2, "eval_at_end": True, "eval_at_start": True}
SP = layout(tp=2, sequence_parallel=True)


@pytest.fixture(scope="module")
def sources(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> TrainedTogether[str]:
    once = {"train_iters": 1, "lr_warmup_iters": 0}
    jobs = {name: tiny_job(name, model=model, schedule=once, evaluation=EVALUATION) for name, model in MODELS.items()}
    return TrainedTogether(ranks, tmp_path_factory.mktemp("sources"), jobs, WEIGHTS_ALONE)


def adapted(name: str, source: RunDir, lora: dict[str, Any], steps: int = STEPS, **sections: Any) -> JobSpec:
    merged = {
        "optimizer": {"lr": 0.2},
        "evaluation": EVALUATION,
        "schedule": {"train_iters": steps, "lr_decay_iters": STEPS, "lr_warmup_iters": 1},
        "checkpoint": {"pretrained": str(source.path)},
        **sections,
    }
    return tiny_job(name, model={**MODELS[name], "lora": {"rank": 4, "alpha": 8.0, **lora}}, **merged)


@pytest.mark.parametrize("name", MODELS)
def test_merged_at_another_layout_they_do_the_same(
    ranks: Ranks, tmp_path: Path, sources: TrainedTogether[str], inject: Callable[[str], Path], name: str
) -> None:
    """A checkpoint of one process, whose adapters added nothing at first: read under TP2, merged and evaluated."""
    source, job = sources[name], adapted(name, sources[name], {})
    run = ranks.must_train(make_run(tmp_path, job), job)
    start, end = values(run, "validation/loss").values()
    assert start == pytest.approx(values(source, "validation/loss")[1], rel=1e-5)
    assert abs(end - start) > 1e-3
    spread = adapted(name, source, {}, parallelism=SP)
    moved = RunDir(shutil.copytree(run.path, tmp_path / "moved" / name / "run"))
    make_run(tmp_path / "moved", spread)
    merged = ranks.must_train(moved, spread, launch_id="second", inject=inject(MERGED))
    assert values(merged, "validation/loss")[STEPS] == pytest.approx(end, rel=1e-5)
    [event] = events(merged, "merged")
    assert event["before"] > event["after"]


CHOSEN = [
    *(["linear_q_down_proj"], ["linear_q_up_proj"], ["linear_kv_down_proj"], ["linear_kv_up_proj"]),
    *(["linear_proj", "linear_q_up_proj"], ["linear_proj"], ["linear_fc2"]),
]


@pytest.fixture(scope="module")
def counted(
    ranks: Ranks, sources: TrainedTogether[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, list[str]], tuple[JobSpec, int]]:
    """Of a model and the matrices that are adapted, the job of a step and the products that torch counts in it."""
    chosen = {"latent": CHOSEN, "delta": [NARROW, WIDE]}
    jobs = {
        (name, *modules): adapted(name, sources[name], {"target_modules": modules}, 1, evaluation={})
        for name, each in chosen.items()
        for modules in each
    }
    folder = tmp_path_factory.mktemp("counted")
    folder.joinpath("counted.py").write_text(COUNTED)
    trained = TrainedTogether(ranks, folder, jobs, folder / "counted.py", UNSAVED)

    def of(name: str, modules: list[str]) -> tuple[JobSpec, int]:
        key = (name, *modules)
        return jobs[key], events(trained[key], "counted")[0]["products"]

    return of


@pytest.mark.parametrize("modules", CHOSEN, ids="+".join)
def test_products_beside_latents_are_those_that_plan_counts(
    counted: Callable[[str, list[str]], tuple[JobSpec, int]], modules: list[str]
) -> None:
    """No gradient is computed of what leads to no adapter: of one latent, of both, or of the scores."""
    job, products = counted("latent", modules)
    tokens, width = job.global_batch_size * job.model.seq_length, LATENT.scores(job.model).width
    needless = 8 if modules in (["linear_proj"], ["linear_fc2"]) else 0
    attention = tokens * (12 * job.model.num_layers - needless) * width * job.model.seq_length
    assert products + attention == model_flops(job, tokens, 256)


NARROW, WIDE = ["in_proj"], ["in_proj", "out_proj", "linear_qkv", "linear_proj"]


def test_products_beside_gated_delta_nets_are_those_that_plan_counts(
    counted: Callable[[str, list[str]], tuple[JobSpec, int]],
) -> None:
    """How many more some adapters make: what states take is not counted as torch does it, in chunks."""
    (narrow, few), (wide, many) = counted("delta", NARROW), counted("delta", WIDE)
    tokens = narrow.global_batch_size * narrow.model.seq_length
    assert many - few == model_flops(wide, tokens, 256) - model_flops(narrow, tokens, 256) > 0


DROPPED = {
    "latent": ["linear_q_down_proj", "linear_kv_up_proj", "linear_fc1"],
    "delta": ["in_proj", "out_proj", "linear_fc1"],
}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def test_full_recomputation_and_dropout_resume_bitwise(
    ranks: Ranks, tmp_path: Path, sources: TrainedTogether[str]
) -> None:
    """Saved on the way under TP2 with sequence parallelism, and the rest: the losses of all of it in one go."""
    sections: dict[str, Any] = {"parallelism": SP, "runtime": FULL, "evaluation": {}}
    jobs = {}
    for name, modules in DROPPED.items():
        lora = {"lora_dropout": 0.2, "target_modules": modules}
        for steps in (1, STEPS):
            jobs[name, steps] = adapted(name, sources[name], lora, steps, **sections)
        jobs[name, 0] = adapted(name, sources[name], {**lora, "lora_dropout": 0.0}, **sections)
    trained = TrainedTogether(ranks, tmp_path, jobs)
    resumed = ResumedTogether(ranks, trained, {(name, 1): jobs[name, STEPS] for name in DROPPED})
    for name in DROPPED:
        whole = losses(trained[name, STEPS])
        assert losses(resumed[name, 1]) == whole
        assert losses(trained[name, 0]) != whole


def test_ranks_drop_the_same_before_what_each_has_whole(
    ranks: Ranks, tmp_path: Path, sources: TrainedTogether[str]
) -> None:
    """Without sequence parallelism all tensor-parallel ranks multiply all tokens by matrices to latents."""
    lora = {"lora_dropout": 0.3, "target_modules": ["linear_q_down_proj", "linear_kv_down_proj", "linear_q_up_proj"]}
    layouts: dict[str, dict[str, Any]] = {"one": layout(), "tp2": layout(tp=2)}
    jobs = {
        name: adapted("latent", sources["latent"], lora, evaluation={}, parallelism=parallelism)
        for name, parallelism in layouts.items()
    }
    trained = TrainedTogether(ranks, tmp_path, jobs, UNSAVED)
    for key in ("train/loss", "train/grad_norm"):
        assert values(trained["tp2"], key) == pytest.approx(values(trained["one"], key), rel=1e-5)
