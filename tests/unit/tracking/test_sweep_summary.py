"""What a sweep's MLflow run says of its cells, from the ledger and what the store holds of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.run_directory.rundir import append_line
from orchestrator.tracking.mlflow.sweep_summary import Child, created, newest_plan, status_of, summary_tags


def child(cell: str, status: str, loss: float | None = None, ended: int | None = 5, **metrics: float) -> Child:
    measured = {"validation/loss": loss} if loss is not None else {}
    return Child(cell, status.lower(), status, None if status == "RUNNING" else ended, {**measured, **metrics})


def plan(home: Path, generation: int, rates: list[str], **more: Any) -> None:
    cells = [
        {"id": rate, "name": f"lr={rate}", "values": {"optimizer.lr": rate, "x": "1"}, "run": ""} for rate in rates
    ]
    home.mkdir(parents=True, exist_ok=True)
    event = {"time": 100.0 + generation, "event": "planned", "generation": generation, "cells": cells, "pruned": [{}]}
    append_line(home / "ledger.jsonl", {**event, **more})


def test_the_newest_plan_that_was_not_withdrawn_counts(tmp_path: Path) -> None:
    assert newest_plan(tmp_path / "none") is None
    assert created(tmp_path / "none") is None
    plan(tmp_path, 1, ["1"])
    plan(tmp_path, 2, ["1", "2"])
    plan(tmp_path, 3, ["3"])
    append_line(tmp_path / "ledger.jsonl", {"time": 200.0, "event": "withdrawn", "generation": 3})
    assert (newest := newest_plan(tmp_path)) is not None
    assert newest.generation == 2
    assert created(tmp_path) == 101.0


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["FINISHED", "RUNNING"], ("RUNNING", None)),
        (["FAILED", "FINISHED", "KILLED"], ("FINISHED", 7)),
        (["KILLED", "FAILED"], ("FAILED", 7)),
        (["KILLED"], ("KILLED", 7)),
    ],
)
def test_a_sweep_runs_while_a_cell_does_and_ends_with_the_last(statuses: list[str], expected: tuple[str, int]) -> None:
    assert status_of([child(str(n), status, ended=7 - n) for n, status in enumerate(statuses)]) == expected


def test_a_sweep_says_how_its_cells_do(tmp_path: Path) -> None:
    home = tmp_path / "a runs folder" / "sweeps" / "rates"
    plan(home, 1, ["1", "2", "3", "4", "5"], goal="min")
    children = [
        child("lr=1", "FINISHED", 2.5),
        child("lr=2", "FINISHED", 1.5),
        child("lr=3", "FAILED", math.nan),
        child("lr=4", "RUNNING", **{"train/loss": 9.0}),
    ]
    tags = summary_tags(home, newest_plan(home), children)
    note = tags.pop("mlflow.note.content")
    assert {name.removeprefix("orchestrator.sweep."): value for name, value in tags.items()} == {
        "metric": "validation/loss",
        "goal": "min",
        "cells": "5",
        "pruned": "1",
        "axes.optimizer.lr": "1, 2, 3, 4, 5",
        "axes.x": "1",
        "states.running": "1",
        "states.finished": "2",
        "states.failed": "1",
        "states.killed": "0",
        "states.waiting": "1",
        "best_cell": "lr=2",
        "best_value": "1.5",
    }
    assert note.startswith("**Sweep rates**: 1 running, 2 finished, 1 failed, 1 waiting\n")
    assert "    orchestrator sweep status rates --runs-dir " in note
    assert note.index("| `lr=2` | 1.5 |") < note.index("| `lr=1` | 2.5 |")
    plan(home, 2, ["1", "2", "4"], goal="max", metric="train/loss")
    tags = summary_tags(home, newest_plan(home), children)
    assert (tags["orchestrator.sweep.best_cell"], tags["orchestrator.sweep.metric"]) == ("lr=4", "train/loss")


def test_cells_that_left_a_sweep_count_no_more(tmp_path: Path) -> None:
    plan(tmp_path, 1, ["1", "2"])
    event = newest_plan(tmp_path)
    assert event is not None
    for number, cell in enumerate(event.rows):
        cell["run"] = f"gpt/0000000{number}"
    children = [
        replace(child("lr=1", "FINISHED", 1.0), run="ffffffff"),  # of the same name, for another cluster
        replace(child("lr=1", "FINISHED", 3.0), run="00000000"),
        child("lr=3", "FAILED", 0.5),
    ]
    tags = summary_tags(tmp_path, event, children)
    states = {name: tags[f"orchestrator.sweep.states.{name}"] for name in ("finished", "failed", "waiting")}
    assert states == {"finished": "1", "failed": "0", "waiting": "1"}
    assert tags["orchestrator.sweep.best_value"] == "3"
    assert summary_tags(tmp_path, None, children)["orchestrator.sweep.states.finished"] == "2", "the ledger is lost"
