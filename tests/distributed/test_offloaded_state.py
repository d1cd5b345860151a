"""Optimizer state in the host's memory: the training of the same job without, checkpoints that any job goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.training import layout, losses, make_run, tiny_job

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir

STEPS = 4
HOST, HALF, GPU = ({"offload_fraction": fraction} for fraction in (1.0, 0.5, 0.0))


def job_of(optimizer: dict[str, Any], steps: int = STEPS, **sections: Any) -> Any:
    return tiny_job(
        "offloaded",
        model={"activation": "swiglu", "hidden_size": 24},
        batch={"micro_batch_size": 4},
        optimizer={"adam_beta2": 0.9, "lr": 1e-2, **optimizer},
        schedule={"train_iters": steps, "lr_decay_iters": STEPS, "lr_warmup_iters": 1},
        **sections,
    )


def continued(ranks: Ranks, folder: Path, *jobs: Any) -> RunDir:
    """One run that goes on as each of these jobs."""
    run = None
    for number, job in enumerate(jobs):
        run = make_run(folder, job)
        ranks.must_train(run, job, launch_id=str(number))
    assert run is not None
    return run


def stored(run: RunDir) -> dict[str, bytes]:
    """Every tensor of the last checkpoint's optimizer."""
    found = StoredWeights(committed(run)[-1].path)
    keys = [key for key in found.keys() if key.startswith("optimizer.state.")]  # noqa: SIM118 - no mapping
    return {key: found.read(key, ()).numpy().tobytes() for key in keys}


@pytest.mark.parametrize(("dtype", "parallelism"), [("bf16", layout(dp=2)), ("fp32", layout())])
def test_the_training_is_bitwise_the_same(
    ranks: Ranks, tmp_path: Path, dtype: str, parallelism: dict[str, Any]
) -> None:
    """Interrupted too, and where the state moves meanwhile: to the host, a half of it back, and to the weights."""
    sections = {"parallelism": parallelism, "precision": {"dtype": dtype}}
    plain = continued(ranks, tmp_path / "plain", job_of(GPU, **sections))
    whole = continued(ranks, tmp_path / "whole", job_of(HOST, **sections))
    moved = continued(
        ranks,
        tmp_path / "moved",
        *(job_of(each, steps, **sections) for steps, each in enumerate((GPU, HOST, HALF, GPU), 1)),
    )
    for run in (whole, moved):
        assert losses(run) == losses(plain)
        assert stored(run) == stored(plain)
