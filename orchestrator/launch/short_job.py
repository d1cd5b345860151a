"""A job for some steps that are only there to be measured: the same work in each, and nothing beside them."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_text

_NAME_LENGTH = 70
_LONGEST_STEP = 900
_LEARNING_RATE = 1e-6


def short_job(job: JobSpec, purpose: str, train_iters: int, vocab_size: int | None) -> JobSpec:
    """The job with its layout at its full batch size for `train_iters` steps on this machine, without checkpoints,
    evaluations, tracking and notifications. On random tokens of a vocabulary of `vocab_size`, or on its own data where
    that is None.

    Raises SpecError where the job cannot train on random tokens.
    """
    data: dict[str, Any] = json.loads(dump_resolved(job))
    data["name"] = short_name(job, purpose)
    if vocab_size is not None:
        data["model"]["vocab_size"] = vocab_size
        data["data"] = {"random_tokens": True, "seed": data["data"]["seed"]}
    data["batch"]["rampup_batch_size"] = None
    data["schedule"] = {"train_iters": train_iters, "lr_decay_style": "constant"}
    data["optimizer"] |= {"lr": _LEARNING_RATE, "min_lr": 0.0}
    data["checkpoint"], data["evaluation"] = {}, {}
    data["tracking"], data["notifications"] = {"mlflow": False}, {}
    data["runtime"]["hang_timeout"] = min(data["runtime"]["hang_timeout"], _LONGEST_STEP)
    data["launch"]["cluster"] = None
    return load_text(json.dumps(data), f"some steps of {job.name}").job


def short_name(job: JobSpec, purpose: str) -> str:
    """What the runs of a job that serve a purpose (`tune`, `bench`) are called in the folder of runs."""
    return f"{job.name[:_NAME_LENGTH]}-{purpose}"
