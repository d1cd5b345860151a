"""Low-rank adapters beside the matrices of experts: every expert has its own, at any layout."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed.test_lora import MERGED
from support.counting import COUNTED
from support.faults import UNSAVED, WEIGHTS_ALONE, Ranks
from support.trained_together import TrainedTogether
from support.training import events, layout, losses, make_run, tiny_job, values

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.planning.flops import model_flops
from orchestrator.planning.parameters import parameters, stage_parameters
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir

EXPERTS = 4
MODEL: dict[str, Any] = {
    **{"hidden_size": 32, "activation": "swiglu", "normalization": "RMSNorm", "add_bias_linear": False},
    **{"num_experts": EXPERTS, "moe_ffn_hidden_size": 24, "moe_shared_expert_intermediate_size": 40},
    **{"moe_aux_loss_coeff": 0.05, "ffn_hidden_size": 48, "moe_layer_freq": [0, 1]},
}
BIASED = {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
LORA = {"rank": 4, "alpha": 8.0}
EVALUATION = {"eval_interval": 100, "eval_iters": 2, "eval_at_end": True, "eval_at_start": True}
STEPS = 3
ROUTED = "decoder.layers.1.mlp.experts.experts."


@pytest.fixture(scope="module")
def source(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    job = tiny_job("source", model=MODEL, schedule={"train_iters": 1, "lr_warmup_iters": 0})
    return ranks.must_train(make_run(tmp_path_factory.mktemp("runs"), job), job, inject=WEIGHTS_ALONE)


def adapted(
    name: str,
    source: RunDir,
    steps: int = STEPS,
    lora: dict[str, Any] | None = None,
    model: Mapping[str, Any] = MODEL,
    **sections: Any,
) -> Any:
    merged = {
        "batch": {"micro_batch_size": 4},
        "optimizer": {"lr": 5e-2, "clip_grad": 0.05},
        "evaluation": EVALUATION,
        "schedule": {"train_iters": steps, "lr_decay_iters": STEPS, "lr_warmup_iters": 1},
        "checkpoint": {"pretrained": str(source.path)},
        **sections,
    }
    return tiny_job(name, model={**model, "lora": {**LORA, **(lora or {})}}, **merged)


@pytest.fixture(scope="module")
def alone(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory, source: RunDir) -> RunDir:
    job = adapted("alone", source)
    return ranks.must_train(make_run(tmp_path_factory.mktemp("alone"), job), job)


LAYOUTS = {
    "ep2": layout(dp=2, expert_model_parallel_size=2),
    "tp2-pp2": layout(tp=2, pp=2, sequence_parallel=True),
    "tp2-whole-experts": layout(tp=2, sequence_parallel=True, expert_tensor_parallel_size=1),
}


def test_every_layout_learns_the_same(ranks: Ranks, tmp_path: Path, source: RunDir, alone: RunDir) -> None:
    """Split, spread and whole experts: losses, gradient norms and counts of one process."""
    start, end = values(alone, "validation/loss").values()
    assert abs(end - start) > 1e-3
    assert events(alone, "started")[0]["parameters"] == parameters(adapted("alone", source), 256).total
    jobs = {name: adapted(name, source, parallelism=parallelism) for name, parallelism in LAYOUTS.items()}
    trained = TrainedTogether(ranks, tmp_path, jobs, UNSAVED)
    for name, job in jobs.items():
        spread = trained[name]
        for key in ("train/loss", "train/grad_norm", "validation/loss"):
            assert values(spread, key) == pytest.approx(values(alone, key), rel=5e-5), (name, key)
        assert events(spread, "started")[0]["parameters"] == stage_parameters(job, 256)[0]


def test_the_first_step_of_every_expert_is_that_of_its_whole_matrix(
    ranks: Ranks, tmp_path: Path, source: RunDir
) -> None:
    """B begins at 0: its first step is scale · ΔW · Aᵀ, where ΔW is the step of the matrix itself, trained whole."""
    plain = {"name": "sgd", "sgd_momentum": 0.0, "lr": 0.5, "weight_decay": 0.0, "clip_grad": 0.0}
    once = {"train_iters": 1, "lr_warmup_iters": 0}
    job = adapted("adapters", source, optimizer=plain, schedule=once, parallelism=LAYOUTS["ep2"])
    whole = tiny_job(
        "whole",
        model=MODEL,
        batch=job.batch.model_dump(exclude_unset=True),
        optimizer=plain,
        schedule=once,
        checkpoint={"pretrained": str(source.path)},
    )
    before, after, adapters = (
        StoredWeights(committed(run)[-1].path)
        for run in (source, *(ranks.undisturbed(each, tmp_path) for each in (whole, job)))
    )
    beside = [f"{ROUTED}linear_fc1", f"{ROUTED}linear_fc2"]
    places = [(module, (expert,)) for module in beside for expert in range(EXPERTS)]
    shared = "decoder.layers.1.mlp.shared_experts.linear_fc1"
    for module, place in [*places, (shared, ())]:
        moved = after.read(f"{module}.weight", place) - before.read(f"{module}.weight", place)
        a, b = (adapters.read(f"{module}.lora.{half}", place) for half in "ab")
        expected = job.model.adapters.scale * moved @ a.t()
        assert b.abs().max() > 1e-5
        torch.testing.assert_close(b, expected, rtol=1e-3, atol=2e-6)
        assert adapters.read(f"{module}.weight", place).equal(before.read(f"{module}.weight", place))


def test_merged_they_do_the_same_at_another_layout(
    ranks: Ranks, tmp_path: Path, source: RunDir, alone: RunDir, inject: Callable[[str], Path]
) -> None:
    """A checkpoint of one process, read where experts are split and spread, merged there and evaluated."""
    run = RunDir(shutil.copytree(alone.path, tmp_path / "alone" / "run"))
    end = values(run, "validation/loss")[STEPS]
    parallelism = layout(tp=2, dp=1, sequence_parallel=True, expert_tensor_parallel_size=1)
    spread = adapted("alone", source, parallelism={**parallelism, "expert_model_parallel_size": 2})
    make_run(tmp_path, spread)
    merged = ranks.must_train(run, spread, launch_id="second", inject=inject(MERGED))
    assert values(merged, "validation/loss")[STEPS] == pytest.approx(end, rel=1e-5)
    [event] = events(run, "merged")
    assert event["before"] - event["after"] == 2 * (2 * 2 + 2 + 2 + 2 * EXPERTS // 2)


@pytest.mark.parametrize("modules", [["linear_fc2"], ["linear_fc1", "linear_fc2"]])
def test_the_products_of_a_step_are_those_that_plan_counts(
    ranks: Ranks, tmp_path: Path, source: RunDir, inject: Callable[[str], Path], modules: list[str]
) -> None:
    """And what torch multiplies beside them: megatron-core's router computes its frozen weight's gradient, too."""
    job = adapted("counted", source, steps=1, lora={"target_modules": modules})
    job = job.model_copy(update={"evaluation": tiny_job("none").evaluation})
    run = ranks.must_train(make_run(tmp_path, job), job, inject=inject(COUNTED))
    model, tokens = job.model, job.global_batch_size * job.model.seq_length
    attention = tokens * (12 + 4) * model.hidden_size * model.seq_length
    router = tokens * 2 * model.hidden_size * EXPERTS
    assert events(run, "counted")[0]["products"] - router + attention == model_flops(job, tokens, 256)


def test_recomputed_experts_and_dropout_resume_bitwise(ranks: Ranks, tmp_path: Path) -> None:
    """Adapters of experts alone, whose input needs no gradient in the first layer; and routers with a bias, which
    training moved, and which stays as it is stored.
    """
    model = {**MODEL, **BIASED}
    first = tiny_job("source", model=model, schedule={"train_iters": 1, "lr_warmup_iters": 0})
    source = ranks.undisturbed(first, tmp_path)
    sections = {
        "model": model,
        "parallelism": LAYOUTS["ep2"],
        "runtime": {"recompute_granularity": "selective", "recompute_modules": ["moe", "mlp"]},
    }
    lora = {"lora_dropout": 0.2, "target_modules": ["linear_fc1", "linear_fc2"]}
    job = adapted("resumed", source, lora=lora, **sections)
    kept = adapted("kept", source, lora=lora, model=model, parallelism=LAYOUTS["ep2"])
    trained = TrainedTogether(ranks, tmp_path / "alone", {"whole": job, "kept": kept}, UNSAVED)
    whole = losses(trained["whole"])
    assert losses(trained["kept"]) == pytest.approx(whole, rel=1e-6)
    run = make_run(tmp_path, adapted("resumed", source, steps=1, lora=lora, **sections))
    ranks.must_train(run, job)
    make_run(tmp_path, job)
    ranks.must_train(run, job, launch_id="second")
    assert [event["iteration"] for event in events(run, "resumed")] == [1]
    assert losses(run) == whole
    before, after = (
        StoredWeights(committed(each)[-1].path).read("decoder.layers.1.mlp.router.expert_bias", ())
        for each in (source, run)
    )
    assert before.abs().max() > 0
    assert after.equal(before)
