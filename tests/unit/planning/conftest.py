"""A small valid job, with whatever a test wants changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.this_machine import gpus, libraries

from orchestrator.spec.job import STORED, JobSpec

__all__ = ["gpus", "libraries"]

BASE: dict[str, dict[str, Any]] = {
    "model": {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "vocab_size": 300},
    "parallelism": {},
    "batch": {"micro_batch_size": 2, "global_batch_size": 8},
    "data": {"random_tokens": True},
    "optimizer": {"lr": 1e-3, "min_lr": 1e-4},
    "schedule": {"train_iters": 100},
    "launch": {},
}

MakeJob = Callable[..., JobSpec]


def build_job(**sections: dict[str, Any]) -> JobSpec:
    """A job without the cross-field rules: the arithmetic also holds for layouts that the runtime refuses so far."""
    data = {section: {**BASE.get(section, {}), **sections.get(section, {})} for section in {*BASE, *sections}}
    return JobSpec.model_validate({"name": "test", **data}, context={STORED: True})


@pytest.fixture(scope="session")
def make_job() -> MakeJob:
    """`make_job(model={"num_layers": 8})`: the base job with these values."""
    return build_job
