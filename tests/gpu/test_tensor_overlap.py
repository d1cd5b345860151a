"""Tensor parallelism that sends while it multiplies trains what it trains when it waits, in whatever it goes with.

Every job here asks for it in words, so that one that cannot have it fails. How much faster it is, `test_beside_peer.py`
says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.measured import Measured, Meter, asked_of, largest_differences, needs_gpus
from support.training import events, largest_difference, layout, losses, make_run, tiny_job, values

from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

MODEL = {
    **{"hidden_size": 512, "num_attention_heads": 8, "num_query_groups": 4, "seq_length": 512, "vocab_size": 50000},
    "init_method_std": 0.05,  # so large that what the layers do shows in the losses
}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
CASES: dict[str, dict[str, Any]] = {
    "bf16": {},
    "swiglu": {"model": {"activation": "swiglu", "normalization": "RMSNorm", "add_bias_linear": False}},
    "recomputed": {"runtime": FULL},
    "fp8-delayed": {"precision": {"fp8": {"recipe": "delayed"}}},
    "fp8-tensorwise": {"precision": {"fp8": {"recipe": "tensorwise"}}},
}
LOSSES, NORMS = 1.5e-3, 2e-2
"""Largest relative differences, as between layouts in bf16 (test_agreement.py)."""


def overlap_job(case: str, *, overlaps: bool, steps: int = 12, **sections: Any) -> JobSpec:
    given = CASES[case]
    return tiny_job(
        f"{case}-{'overlapped' if overlaps else 'waiting'}",
        model={**MODEL, **given.get("model", {})},
        batch={"micro_batch_size": 4, "global_batch_size": 8},
        parallelism=layout(tp=2, sequence_parallel=True, tp_comm_overlap=overlaps),
        precision={"dtype": "bf16", **given.get("precision", {})},
        runtime={"layers": "transformer_engine", **given.get("runtime", {})},
        schedule={"train_iters": steps},
        **sections,
    )


def whole_job(*, overlaps: bool, steps: int = 8) -> JobSpec:
    """With all that a run does beside its steps."""
    evaluation, checkpoint = {"eval_interval": 4, "eval_iters": 2}, {"save_interval": 4}
    job = overlap_job("bf16", overlaps=overlaps, steps=steps, evaluation=evaluation, checkpoint=checkpoint)
    return job.model_copy(update={"name": f"whole-{job.name}"})


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    both = (True, False)
    cases = [overlap_job(case, overlaps=overlaps) for case in CASES for overlaps in both]
    return [*cases, *(whole_job(overlaps=overlaps) for overlaps in both)]


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, trainer: Meter) -> dict[str, Measured]:
    """The cases that this session asks for, by the jobs' names: one after the other by the same ranks."""
    asked = sorted(case for (case,) in asked_of(request, "case"))
    return trainer.measure_all(overlap_job(case, overlaps=overlaps) for case in asked for overlaps in (True, False))


@pytest.mark.parametrize("case", CASES)
def test_it_trains_the_same(case: str, request: pytest.FixtureRequest) -> None:
    needs_gpus(2, "transformer_engine")
    trained: dict[str, Measured] = request.getfixturevalue("trained")
    waiting, overlapped = (trained[overlap_job(case, overlaps=overlaps).name] for overlaps in (False, True))
    for each in (waiting, overlapped):
        assert each.outcome == "measured", each.message
    losses_apart, norms_apart = largest_differences(waiting, overlapped)
    print(f"\nRESULT overlapped {case} against waiting: losses {losses_apart:.1e} norms {norms_apart:.1e}")
    assert losses_apart < LOSSES
    assert norms_apart < NORMS


def test_a_whole_run(ranks: Ranks, tmp_path: Path) -> None:
    """It evaluates, saves and ends in order, and a run that waits goes on from its checkpoint."""
    needs_gpus(2, "transformer_engine")
    waiting, overlapped = (whole_job(overlaps=overlaps) for overlaps in (False, True))
    exact = ranks.must_train(make_run(tmp_path, waiting), waiting)
    run = ranks.must_train(make_run(tmp_path, overlapped), overlapped)
    assert [event["tp_comm_overlap"] for event in events(exact, "started") + events(run, "started")] == [False, True]
    of_losses = largest_difference(losses(exact), losses(run))
    of_validation = largest_difference(values(exact, "validation/loss"), values(run, "validation/loss"))
    print(f"\nRESULT a whole run, overlapped against waiting: losses {of_losses:.1e}, validation {of_validation:.1e}")
    assert max(of_losses, of_validation) < LOSSES
    longer = overlapped.model_copy(
        update={
            "parallelism": overlapped.parallelism.model_copy(update={"tp_comm_overlap": False}),
            "schedule": overlapped.schedule.model_copy(update={"train_iters": 10}),
        }
    )
    make_run(tmp_path, longer)
    ranks.must_train(run, longer, launch_id="second")
    assert [event["iteration"] for event in events(run, "resumed")] == [8]
    assert [event["tp_comm_overlap"] for event in events(run, "started")] == [True, False]
