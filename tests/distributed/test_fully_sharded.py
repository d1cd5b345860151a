"""Replicas that share out weights, gradients and optimizer state train as those that have them whole, and their
checkpoints go on at any layout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import WEIGHTS_ALONE, Ranks
from support.trained_together import TrainedTogether, selected
from support.trained_weights import BITWISE, weights_apart
from support.training import events, largest_difference, layout, losses, make_run, tiny_job, values

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each layout trains on real ranks")]

FULL = {"fsdp": "full"}
GATED = {
    "activation": "swiglu",
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "num_query_groups": 2,
}
RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 2}
EXPERTS = {"num_experts": 4, "moe_ffn_hidden_size": 64, "add_bias_linear": False}
CASES: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "bf16": (layout(dp=2), {"precision": {"dtype": "bf16"}}),
    "fp16": (layout(dp=2), {"precision": {"dtype": "fp16", "initial_loss_scale": 1024}}),
    "recomputed": (layout(dp=2), {"model": {**GATED, "num_layers": 4}, "runtime": RECOMPUTED}),
    "parts recomputed": (
        layout(dp=2),
        {"model": GATED, "runtime": {"recompute_granularity": "selective", "recompute_modules": ["mlp", "layernorm"]}},
    ),
    "joined loss": (layout(dp=2), {"runtime": {"fused_linear_cross_entropy": True}}),
    "muon": (layout(dp=2), {"model": GATED, "optimizer": {"name": "muon", "lr": 3e-3}}),
    "further tokens": (layout(dp=2), {"model": {**GATED, "mtp_num_layers": 1}}),
    "not overlapped": (layout(dp=2, overlap_grad_reduce=False, overlap_param_gather=False), {}),
    "bert": (layout(dp=2), {"model": {"architecture": "bert"}}),
    "evaluated": (layout(dp=2), {"evaluation": {"eval_interval": 2, "eval_iters": 1}}),
    "tensor parallel": (layout(tp=2, dp=2, sequence_parallel=True), {"model": GATED}),
    "groups of replicas": (layout(dp=4), {"model": GATED}),
    "parts of sequences in groups": (
        layout(dp=2, context_parallel_size=2),
        {"optimizer": {"name": "muon", "lr": 3e-3}},
    ),
    "spread experts": (layout(dp=4, expert_model_parallel_size=2), {"model": EXPERTS}),
    "spread experts in groups": (
        layout(dp=4, expert_model_parallel_size=2),
        {"model": EXPERTS, "optimizer": {"name": "muon", "lr": 3e-3}},
    ),
}


ADDING = ("bf16", "further tokens", "not overlapped", "tensor parallel", "parts of sequences in groups")
"""With two micro-batches or more of each replica, whose gradients add up."""
GROUPS = {"groups of replicas": 2, "parts of sequences in groups": 2, "spread experts in groups": 2}
"""Of how many ranks a group is that shares out all weights; of all that have the same, unless it is listed."""


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[tuple[str, str]]:
    """Each case with whole weights and with shards of them."""
    jobs = {}
    for name in selected(request, "name"):
        parallelism, sections = CASES[name]
        batch = 8 if name in ADDING else 2 * parallelism["data_parallel_size"]
        for how, more in (("whole", {}), ("full", {"fsdp": GROUPS.get(name, "full")})):
            jobs[name, how] = tiny_job(
                how,
                **{
                    "batch": {"micro_batch_size": 2, "global_batch_size": batch},
                    "schedule": {"train_iters": 2, "lr_warmup_iters": 0},
                    "optimizer": {"lr": 3e-3, "clip_grad": 0.5, "weight_decay": 0.1},
                    "parallelism": {**parallelism, **more},
                    **sections,
                },
            )
    return TrainedTogether(ranks, tmp_path_factory.mktemp("sharded"), jobs, saved)


STATE_SAVED = ("fp16", "muon", "parts of sequences in groups", "spread experts")
"""Whose optimizers are others than those that go on from checkpoints below."""


def saved(key: tuple[str, str]) -> Path | None:
    """What is injected."""
    return None if key[0] in STATE_SAVED else WEIGHTS_ALONE


@pytest.mark.parametrize("name", CASES)
def test_losses_and_norms_are_those_of_whole_weights(name: str, trained: TrainedTogether[tuple[str, str]]) -> None:
    whole, full = (trained[name, how] for how in ("whole", "full"))
    assert largest_difference(losses(whole), losses(full)) < 1e-6
    assert largest_difference(*(values(run, "train/grad_norm") for run in (whole, full))) < 1e-6
    assert weights_apart(whole, full) == {}


LEG = 2
"""Steps until the next layout goes on."""


def job_at(parallelism: dict[str, Any], legs: int, **sections: dict[str, Any]) -> JobSpec:
    """With rows that no number of ranks divides."""
    return tiny_job(
        "legs",
        **{
            "model": {**GATED, "hidden_size": 40, "ffn_hidden_size": 44, "num_query_groups": None},
            "batch": {"micro_batch_size": 8 // max(2, parallelism["data_parallel_size"])},
            "schedule": {"train_iters": LEG * legs, "lr_decay_style": "constant", "lr_warmup_iters": 1},
            "checkpoint": {"save_interval": LEG, "keep_last": 9},
            "parallelism": parallelism,
            **sections,
        },
    )


def test_checkpoints_are_those_of_any_layout(ranks: Ranks, tmp_path: Path) -> None:
    """A run goes on sharded and whole, with other numbers of replicas, as one that is never interrupted: its weights,
    their fp32 copies and the moments.
    """
    two = layout(dp=2)
    four, split = layout(dp=4, fsdp=2), layout(tp=2, dp=2, sequence_parallel=True, **FULL)
    layouts = [{**two, **FULL}, layout(), four, split, two]
    precision = {"precision": {"dtype": "bf16"}}
    whole = ranks.undisturbed(job_at(two, len(layouts), **precision), tmp_path / "whole")
    for legs, parallelism in enumerate(layouts, 1):
        job = job_at(parallelism, legs, **precision)
        run = make_run(tmp_path, job)
        ranks.must_train(run, job, launch_id=f"leg-{legs}")
    assert [event["iteration"] for event in events(run, "resumed")] == [LEG * leg for leg in range(1, len(layouts))]
    assert largest_difference(losses(whole), losses(run)) < 1e-4
    assert weights_apart(whole, run, 1e-2) == {}, "a weight of 1 has its neighbours at 0.0078"
    sharded, plain = (StoredWeights(run.checkpoint(LEG * leg)) for leg in (1, 2))
    assert sharded.keys() == plain.keys()
    assert {sharded.shape(key) == plain.shape(key) for key in plain.keys()} == {True}  # noqa: SIM118


def test_experts_of_groups_go_on_at_any_layout(ranks: Ranks, tmp_path: Path) -> None:
    """Spread inside each of two groups, and whole, and in groups that have all of them, as one process does."""
    spread, model = layout(dp=4, expert_model_parallel_size=2, fsdp=2), {"model": EXPERTS}
    layouts = [spread, layout(), layout(dp=4, fsdp=2), spread]
    whole = ranks.undisturbed(job_at(layout(), len(layouts), **model), tmp_path / "whole")
    run = ranks.continued(
        tmp_path, *(job_at(parallelism, legs, **model) for legs, parallelism in enumerate(layouts, 1))
    )
    assert largest_difference(losses(whole), losses(run)) < 1e-5
    assert weights_apart(whole, run) == {}


def test_a_killed_run_goes_on(ranks: Ranks, tmp_path: Path) -> None:
    """Bitwise, at the same layout: weights, state and generators are restored."""
    job = job_at(layout(dp=2, **FULL), 6, model={**GATED, "hidden_dropout": 0.1})
    whole = ranks.undisturbed(job, tmp_path / "whole")
    run = make_run(tmp_path / "killed", job)
    ranks.killed_and_resumed(run, job)
    assert losses(run) == losses(whole)
    assert weights_apart(whole, run, BITWISE) == {}


def test_pretrained_weights(ranks: Ranks, tmp_path: Path) -> None:
    """A job begins with those of a run that was not sharded."""
    first = ranks.undisturbed(job_at(layout(), 1), tmp_path / "first")
    begins = {"checkpoint": {"pretrained": str(first.path), "save_interval": LEG}, "optimizer": {"lr": 1e-4}}
    whole, full = (
        ranks.undisturbed(job_at(layout(dp=2, **more), 1, **begins), tmp_path / name)
        for name, more in (("whole", {}), ("full", FULL))
    )
    assert largest_difference(losses(whole), losses(full)) < 1e-6
    assert losses(whole)[1] != losses(first)[1]
    assert weights_apart(whole, full) == {}
