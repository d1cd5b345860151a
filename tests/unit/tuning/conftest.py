"""Jobs to tune."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from orchestrator.spec.job import JobSpec
from orchestrator.tuning.layout import on_machines
from orchestrator.tuning.space import Space

Job = Callable[..., JobSpec]

SECTIONS: dict[str, dict[str, Any]] = {
    "model": {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 1024, "vocab_size": 32000},
    "batch": {"micro_batch_size": 1, "global_batch_size": 16},
    "data": {"random_tokens": True},
    "optimizer": {"lr": 1e-3},
    "schedule": {"train_iters": 20},
}


def make_job(**sections: Mapping[str, Any]) -> JobSpec:
    """A small GPT with some fields of some sections replaced."""
    merged = {name: {**SECTIONS.get(name, {}), **sections.get(name, {})} for name in {*SECTIONS, *sections}}
    return JobSpec.model_validate({"name": "job", **merged})


@pytest.fixture(name="make_job")
def _make_job() -> Job:
    return make_job


@pytest.fixture
def space() -> Callable[..., Space]:
    """A space over `gpus` GPUs of one machine, or of several."""

    def make(gpus: int = 4, nodes: int = 1, kept: frozenset[str] = frozenset(), **sections: Mapping[str, Any]) -> Space:
        return Space(on_machines(make_job(**sections), nodes, gpus // nodes), kept)

    return make
