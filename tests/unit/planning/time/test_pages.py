"""docs/benchmarks/roofline.md and scaling.md say what the model of a step's time says now."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "benchmarks"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_page", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["roofline", "scaling"])
def test_a_page_is_up_to_date(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = script(name, monkeypatch)
    assert written.PAGE.read_text() == written.page(), f"PYTHONPATH=tests python tests/benchmarks/{name}.py"


def test_one_model_on_more_gpus_loses_what_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ends within two points, though nothing was fitted on them; and more GPUs are never used better."""
    scaling = script("scaling", monkeypatch)
    shares = {job.world_size: 100 * scaling.published(job).mfu for job in map(scaling.strong, scaling.REPLICAS)}
    for gpus, percent in scaling.PUBLISHED_STRONG.items():
        assert shares[gpus] == pytest.approx(percent, abs=2), gpus
    assert sorted(shares.values(), reverse=True) == list(shares.values())
