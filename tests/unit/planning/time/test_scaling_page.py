"""docs/benchmarks/scaling.md says what the model of a step's time says now, and it scales as was published."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "scaling.py"


@pytest.fixture(scope="module")
def scaling() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scaling", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(scaling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--check"])
    assert scaling.main() == 0, "PYTHONPATH=tests python tests/benchmarks/scaling.py"


def test_one_model_on_more_gpus_loses_what_was_published(scaling: Any) -> None:
    """Its ends within two points, though nothing was fitted on them; and more GPUs are never used better."""
    shares = {job.world_size: 100 * scaling.published(job).mfu for job in map(scaling.strong, scaling.REPLICAS)}
    for gpus, percent in scaling.PUBLISHED_STRONG.items():
        assert shares[gpus] == pytest.approx(percent, abs=2), gpus
    assert sorted(shares.values(), reverse=True) == list(shares.values())
