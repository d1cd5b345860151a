"""A small job and a fake training program, so that launching is tested without torch's heavy start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.spec.job import JobSpec


@pytest.fixture
def make_job() -> Callable[..., JobSpec]:
    """make_job(**changes): a job that fits anywhere; changes are whole sections, or `section__key=value`."""
    return _make_job


def _make_job(**changes: Any) -> JobSpec:
    sections: dict[str, Any] = {
        "name": "tiny",
        "model": {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 8, "vocab_size": 256},
        "parallelism": {"tensor_model_parallel_size": 2},
        "batch": {"micro_batch_size": 1, "global_batch_size": 2},
        "data": {"random_tokens": True},
        "optimizer": {"lr": 1e-3},
        "schedule": {"train_iters": 20},
        "precision": {"dtype": "fp32"},
        "checkpoint": {"save_interval": 5},
        "tracking": {"mlflow": False},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            sections[section] = {**sections.get(section, {}), name: value}
        else:
            sections[section] = value
    return JobSpec.model_validate(sections)


@pytest.fixture
def job() -> JobSpec:
    return _make_job()


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs"
