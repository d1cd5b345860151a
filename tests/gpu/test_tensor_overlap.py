"""Tensor parallelism that sends while it multiplies trains what it trains when it waits, in whatever it goes with.

Jobs here demand it, so that one that cannot have it fails; one leaves it out, as people do. How much faster it is,
`test_beside_peer.py` says.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks, wait_until
from support.measured import Measured, Meter, asked_of, largest_differences, needs_gpus
from support.training import events, four_layer_job, largest_difference, layout, losses, make_run, values

from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

MODEL = {
    **{"hidden_size": 512, "num_attention_heads": 8, "num_query_groups": 4, "seq_length": 512, "vocab_size": 50000},
    "init_method_std": 0.05,  # so large that what the layers do shows in the losses
}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
MODULES = {"recompute_granularity": "selective", "recompute_modules": ["layernorm", "mlp"]}
PLAIN = {"add_bias_linear": False}
CASES: dict[str, dict[str, Any]] = {
    "bf16": {},
    "swiglu": {"model": {"activation": "swiglu", "normalization": "RMSNorm", **PLAIN}},
    "recomputed": {"runtime": FULL},
    "modules-recomputed": {"model": PLAIN, "runtime": MODULES},
    "fp8-delayed": {"precision": {"fp8": {"recipe": "delayed"}}},
    "fp8-tensorwise": {"precision": {"fp8": {"recipe": "tensorwise"}}},
    "tp4": {"parallelism": layout(tp=4, sequence_parallel=True)},
    "cp2": {"parallelism": layout(tp=2, sequence_parallel=True, context_parallel_size=2)},
    "dp2": {"parallelism": layout(tp=2, sequence_parallel=True, dp=2)},
    "pp2": {"parallelism": layout(tp=2, sequence_parallel=True, pp=2)},
    "pp2-interleaved": {"parallelism": layout(tp=2, sequence_parallel=True, pp=2, vp=2)},
}
LOSSES, NORMS = 1.5e-3, 2e-2
"""Largest relative differences, as between layouts in bf16 (test_agreement.py)."""


def overlap_job(case: str, *, overlaps: bool | None, steps: int = 12, **sections: Any) -> JobSpec:
    given = CASES[case]
    return four_layer_job(
        f"{case}-{'waiting' if overlaps is False else 'overlapped'}",
        model={**MODEL, **given.get("model", {})},
        batch={"micro_batch_size": 4, "global_batch_size": 8},
        parallelism={**given.get("parallelism", layout(tp=2, sequence_parallel=True)), "tp_comm_overlap": overlaps},
        precision={"dtype": "bf16", **given.get("precision", {})},
        runtime={"layers": "transformer_engine", "attention_backend": "fused", **given.get("runtime", {})},
        schedule={"train_iters": steps},
        **sections,
    )


def whole_job(*, overlaps: bool | None, steps: int = 40) -> JobSpec:
    """With all that a run does beside its steps."""
    evaluation, checkpoint = {"eval_interval": 20, "eval_iters": 2}, {"save_interval": 10}
    job = overlap_job("bf16", overlaps=overlaps, steps=steps, evaluation=evaluation, checkpoint=checkpoint)
    return job.model_copy(update={"name": f"whole-{job.name}"})


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    cases = [overlap_job(case, overlaps=overlaps) for case in CASES for overlaps in (True, False)]
    return [*cases, *(whole_job(overlaps=overlaps) for overlaps in (None, False))]


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, trainer: Meter) -> dict[str, Measured]:
    """The cases that this session asks for, by the jobs' names: those of one size one after the other by the same
    ranks, which share GPUs where there are fewer.
    """
    asked = sorted(case for (case,) in asked_of(request, "case"))
    return trainer.measure_all(overlap_job(case, overlaps=overlaps) for case in asked for overlaps in (True, False))


@pytest.mark.parametrize("case", CASES)
def test_it_trains_the_same(case: str, request: pytest.FixtureRequest) -> None:
    """Four ranks of one layer have to have a GPU each."""
    needs_gpus(4 if case == "tp4" else 2, "transformer_engine")
    trained: dict[str, Measured] = request.getfixturevalue("trained")
    waiting, overlapped = (trained[overlap_job(case, overlaps=overlaps).name] for overlaps in (False, True))
    for each in (waiting, overlapped):
        assert each.outcome == "measured", each.message
    losses_apart, norms_apart = largest_differences(waiting, overlapped)
    print(f"\nRESULT overlapped {case} against waiting: losses {losses_apart:.1e} norms {norms_apart:.1e}")
    assert losses_apart < LOSSES
    assert norms_apart < NORMS


def test_a_whole_run(ranks: Ranks, tmp_path: Path) -> None:
    """It overlaps without being told to, evaluates, saves and ends in order. Where one rank is killed the others end,
    and the run goes on from its checkpoint, to the bit; and so does one that is told to wait.
    """
    needs_gpus(2, "transformer_engine")
    waiting, overlapped = (whole_job(overlaps=overlaps) for overlaps in (False, None))
    exact = ranks.must_train(make_run(tmp_path, waiting), waiting)
    run = ranks.must_train(make_run(tmp_path, overlapped), overlapped)
    assert [event["tp_comm_overlap"] for event in events(exact, "started") + events(run, "started")] == [False, True]
    assert "UB_TIMEOUT is set to 1000000000 sec" in run.rank_log(0).read_text(), "what no kernel is to do without"
    of_losses = largest_difference(losses(exact), losses(run))
    of_validation = largest_difference(values(exact, "validation/loss"), values(run, "validation/loss"))
    print(f"\nRESULT a whole run, overlapped against waiting: losses {of_losses:.1e}, validation {of_validation:.1e}")
    assert max(of_losses, of_validation) < LOSSES

    disturbed = make_run(tmp_path / "disturbed", overlapped)
    started = ranks.start(disturbed, overlapped)
    wait_until(lambda: committed(disturbed) or started.poll() is not None, "a checkpoint")
    os.kill(started.ranks[1], signal.SIGKILL)
    assert started.wait() == 1, "a rank was killed before the end"
    ranks.must_train(disturbed, overlapped, launch_id="second")
    assert losses(disturbed) == losses(run)

    longer = overlapped.model_copy(
        update={
            "parallelism": overlapped.parallelism.model_copy(update={"tp_comm_overlap": False}),
            "schedule": overlapped.schedule.model_copy(update={"train_iters": 42}),
        }
    )
    make_run(tmp_path, longer)
    ranks.must_train(run, longer, launch_id="second")
    assert [event["iteration"] for event in events(run, "resumed")] == [40]
    assert [event["tp_comm_overlap"] for event in events(run, "started")] == [True, False]
