"""What a checkpoint at size costs: training stands still for little of it, and a new process soon goes on from it.

jobs/gpt-7.1b.yaml with its optimizer on two GPUs (100 GB), or jobs/gpt-1.7b.yaml where there is one. Only one
checkpoint is on the disk at a time.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.faults import Ranks
from support.measured import RANK_ENVIRONMENT, gpu_count, needs_gpus
from support.saving import measure_saves, resumed
from support.training import make_run

from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

JOBS = Path(__file__).parents[2] / "jobs"
STANDING_STILL, FIRST_STEP = 3.0, 60.0
"""Seconds: per save, and from a new process to its first step."""


def saving_job(name: str) -> JobSpec:
    """As it is in `jobs`, with one micro-batch per step. The interval is so long that only the test saves."""
    changes = ["tracking.mlflow=false", "batch.global_batch_size=4", "schedule.train_iters=100000"]
    return load_job([JOBS / f"{name}.yaml"], [*changes, "checkpoint.save_interval=100000"]).job


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    return [saving_job(name) for name in ("gpt-1.7b", "gpt-7.1b")]


def test_training_hardly_stands_still(ranks: Ranks, tmp_path: Path) -> None:
    needs_gpus(1, "torch")
    job = saving_job("gpt-7.1b" if gpu_count() >= 2 else "gpt-1.7b")
    run = make_run(tmp_path, job)
    try:
        quiet, saves = measure_saves(ranks, run, job, RANK_ENVIRONMENT)
        print(
            f"\nRESULT {job.name} on {job.world_size} GPUs: {quiet.taking:.1f} s until the memory for saves was taken, "
            f"with steps of {quiet.taking_step:.3f} s meanwhile, and of {quiet.step:.3f} s then"
        )
        for number, save in enumerate(saves, 1):
            print(
                f"\nRESULT {job.name} on {job.world_size} GPUs, save {number}: {save.standing_still:.2f} s still, "
                f"{save.slowed_down:.2f} s slower over {save.steps} steps, committed after "
                f"{save.seconds:.1f} s, {save.bytes / 1e9:.1f} GB"
            )
        with resumed(run, job, RANK_ENVIRONMENT) as (seconds, parts):
            print(f"\nRESULT {job.name}: first step {seconds:.1f} s after the start of new processes: {parts}")
        assert all(save.standing_still < STANDING_STILL for save in saves)
        assert seconds < FIRST_STEP
    finally:
        shutil.rmtree(run.path)
