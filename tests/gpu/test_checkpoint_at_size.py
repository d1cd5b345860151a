"""What a checkpoint at size costs: training stands still for little of it, and a new process soon goes on from it.

jobs/benchmarks/gpt-7.1b.yaml with its optimizer on two GPUs (100 GB), and jobs/benchmarks/gpt-1.7b.yaml on one and as
two replicas, each of which saves its half of the optimizer's state. Only one checkpoint is on the disk at a time.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.faults import Ranks
from support.measured import RANK_ENVIRONMENT, needs_gpus
from support.saving import measure_saves, resumed
from support.shipped import SHIPPED
from support.training import make_run

from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

STANDING_STILL, FIRST_STEP = 3.0, 60.0
"""Seconds: per save, and from a new process to its first step."""


ROWS = {"7.1b-tp2": ("gpt-7.1b", 2, 1), "1.7b": ("gpt-1.7b", 1, 1), "1.7b-dp2": ("gpt-1.7b", 2, 2)}
"""By a name: the shipped job, its GPUs and its replicas."""


def saving_job(row: str) -> JobSpec:
    """As it is shipped, with one micro-batch per step. The interval is so long that only the test saves."""
    name, gpus, replicas = ROWS[row]
    changes = [f"launch.gpus_per_node={gpus}", f"batch.global_batch_size={4 * replicas}", "tracking.mlflow=false"]
    lengths = ["schedule.train_iters=100000", "checkpoint.save_interval=100000"]
    return load_job([SHIPPED[name]], [*changes, *lengths]).job


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    return [saving_job(row) for row in ROWS]


@pytest.mark.parametrize("row", ROWS)
def test_training_hardly_stands_still(row: str, ranks: Ranks, tmp_path: Path) -> None:
    job = saving_job(row)
    needs_gpus(job.world_size, "torch")
    run = make_run(tmp_path, job)
    try:
        quiet, saves = measure_saves(ranks, run, job, RANK_ENVIRONMENT)
        print(
            f"\nRESULT {row}: {quiet.taking:.1f} s until the memory for saves was taken, "
            f"with steps of {quiet.taking_step:.3f} s meanwhile, and of {quiet.step:.3f} s then"
        )
        for number, save in enumerate(saves, 1):
            print(
                f"\nRESULT {row}, save {number}: {save.standing_still:.2f} s still, "
                f"{save.slowed_down:.2f} s slower over {save.steps} steps, committed after "
                f"{save.seconds:.1f} s, {save.bytes / 1e9:.1f} GB"
            )
        with resumed(run, job, RANK_ENVIRONMENT) as (seconds, parts):
            print(f"\nRESULT {row}: first step {seconds:.1f} s after the start of new processes: {parts}")
        assert all(save.standing_still < STANDING_STILL for save in saves)
        assert seconds < FIRST_STEP
    finally:
        shutil.rmtree(run.path)
