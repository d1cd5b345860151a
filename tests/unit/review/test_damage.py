"""Whatever stands in the files of a run: its summary, its curves and its goodput are told, or what is wrong with it."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.training import tiny_job

from orchestrator.dashboard.rendering import spark_points, spark_words
from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import create_run
from orchestrator.review.charts.catalogue import CHARTS
from orchestrator.review.charts.curves import View, figure_of
from orchestrator.review.charts.series import GrowingSeries
from orchestrator.review.charts.timeline import marks_of
from orchestrator.review.index import RunIndex
from orchestrator.review.query import select
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.summary import summarize_each
from orchestrator.review.table import COLUMNS, collapsed, ordered
from orchestrator.run_directory.rundir import RunDir

numbers = st.integers() | st.floats() | st.sampled_from([10**400, -1, 0, 1e308, 2**63, time.time(), time.time() + 1e9])
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=8) | st.sampled_from(["nan", "<script>", "\ud800", "‮"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
EVENTS = ("created", "launched", "started", "exited", "resumed", "submitted", "requeued", "withdrawn", "stop_requested")
KEYS = ("time", "launch_id", "job_id", "cluster", "cause", "message", "code", "iteration", "evidence", "host", "pid")
events = st.fixed_dictionaries({"event": st.sampled_from(EVENTS) | values}, optional=dict.fromkeys(KEYS, values))
records = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("time", "iteration", "samples", "tokens"), numbers | values),
        "values": st.dictionaries(st.sampled_from(["train/loss", "validation/loss", "x/<b>"]), numbers | values)
        | values,
    },
)


def lines(entries: list[Any], torn: int) -> bytes:
    text = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
    return text[: len(text) - torn]


def made(folder: Path) -> RunDir:
    return create_run(tiny_job("small"), "name: small\n", folder, CodeState({}, b""))


def told(run: RunDir, runs_dir: Path) -> RunSummary:
    """Everything that the pages ask of a run."""
    index = RunIndex(runs_dir)
    index.look()
    index.find_goodput()
    [summary] = index.runs
    assert index.find(run.name, run.run_id) is not None
    for column in COLUMNS.values():
        assert ordered(index.runs, column, falling=True) == [summary]
    assert len(collapsed(index.runs)) == 1
    select(index.runs, "small loss<3 age>1d -eta<5 optimizer.lr>0")
    assert spark_words(summary.spark)
    assert "nan" not in spark_points(summary.spark, 90, 22)
    series = GrowingSeries(run.metrics_file).refresh()
    for chart in CHARTS.values():
        for x in ("steps", "tokens", "time", "clock"):
            figure = figure_of(chart, {"one": series}, View(x, 0.5), marks=marks_of(run.events()))
            json.dumps(figure, allow_nan=False)
    return summary


@settings(max_examples=examples(25))
@given(found=st.lists(events, max_size=6), torn=st.integers(0, 9))
def test_any_events(tmp_path_factory: pytest.TempPathFactory, found: list[Any], torn: int) -> None:
    folder = tmp_path_factory.mktemp("runs")
    run = made(folder)
    with open(run.events_file, "ab") as file:
        file.write(lines(found, torn))
    told(run, folder)


@settings(max_examples=examples(25))
@given(found=st.lists(records, max_size=8), torn=st.integers(0, 9))
def test_any_measurements(tmp_path_factory: pytest.TempPathFactory, found: list[Any], torn: int) -> None:
    folder = tmp_path_factory.mktemp("runs")
    run = made(folder)
    run.metrics_file.write_bytes(lines(found, torn))
    summary = told(run, folder)
    assert all(math.isfinite(value) for value in summary.spark)


@settings(max_examples=examples(25))
@given(name=st.sampled_from(["resolved.json", "sweep.json", "stop", "lease/000001.json"]), content=values | st.binary())
def test_any_content_of_a_file(tmp_path_factory: pytest.TempPathFactory, name: str, content: Any) -> None:
    folder = tmp_path_factory.mktemp("runs")
    run = made(folder)
    run.lease.mkdir()
    (run.path / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    told(run, folder)


@settings(max_examples=examples(20))
@given(section=st.sampled_from(["model", "parallelism", "schedule", "optimizer", "name"]), content=values)
def test_any_part_of_a_spec(tmp_path_factory: pytest.TempPathFactory, section: str, content: Any) -> None:
    folder = tmp_path_factory.mktemp("runs")
    run = made(folder)
    spec = json.loads(run.resolved().read_bytes())
    run.resolved().write_text(json.dumps({**spec, section: content}))
    told(run, folder)


def test_a_run_that_vanished_is_forgotten(tmp_path: Path) -> None:
    run = made(tmp_path)
    index = RunIndex(tmp_path)
    index.look()
    assert len(index.runs) == 1
    run.path.rename(tmp_path / "elsewhere")
    index.find_goodput()
    index.look()
    assert len(index.runs) == 0
    assert index.find(run.name, run.run_id) is None
    assert summarize_each([run])[0].problem is not None
    for name in ("..", ".", "", "a\0b", "x" * 5000, "\ud800"):
        assert index.find(name, run.run_id) is None
        assert index.find("small", name) is None
