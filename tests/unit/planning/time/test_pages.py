"""The tables in docs/benchmarks say what the models of memory and time, and the rows beside them, say now."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from support.benchmark_data import DATA, records

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


@pytest.mark.parametrize("name", ["results.md", "accuracy.md"])
def test_tables_are_up_to_date(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = script("tables", monkeypatch)
    page = (tables.FOLDER / name).read_text()
    assert tables.current(name) == page, "PYTHONPATH=tests python tests/benchmarks/tables.py"
    assert [table for table in tables.PAGES[name] if f"<!-- table: {table} -->" not in page] == []


def test_every_row_belongs_to_a_setup() -> None:
    setups = {row["setup"] for row in records("setups")}
    for path in DATA.glob("*.csv"):
        found = {row["setup"] for row in records(path.stem) if "setup" in row}
        assert found <= setups, path.name


def test_one_model_on_more_gpus_loses_what_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ends within two points, though nothing was fitted on them; and more GPUs are never used better."""
    scaling = script("scaling", monkeypatch)
    shares = {job.world_size: 100 * scaling.published(job).mfu for job in map(scaling.strong, scaling.REPLICAS)}
    for gpus, percent in scaling.PUBLISHED_STRONG.items():
        assert shares[gpus] == pytest.approx(percent, abs=2), gpus
    assert sorted(shares.values(), reverse=True) == list(shares.values())
