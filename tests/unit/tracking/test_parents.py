"""The runs of a sweep's cells are children of one MLflow run."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.event_log import append_event

from orchestrator.run_directory.rundir import RunDir, append_line
from tests.unit.tracking.conftest import log_steps, make_run, once, start_once, stored_runs

pytestmark = pytest.mark.usefixtures("forked_sending")


def make_cell(runs_dir: Path, run_id: str, cell: str) -> RunDir:
    run = make_run(runs_dir, run_id)
    home = runs_dir / "sweeps" / "lr"
    home.mkdir(parents=True, exist_ok=True)
    record = {"sweep": "lr", "sweep_dir": str(home), "cell": cell, "values": {"optimizer.lr": cell}}
    run.membership.write_text(json.dumps(record))
    log_steps(run, range(1, 4))
    append_event(run, "exited", launch_id="l1", code=0, cause="completed", iteration=3)
    return run


@pytest.mark.slow(reason="four sendings, each the start of an MLflow process")
def test_cells_have_one_parent_however_many_send_at_once(tmp_path: Path, empty_store: Path) -> None:
    runs_dir = tmp_path / "runs"
    runs_dir.mkdir()
    shutil.copy(empty_store, runs_dir / "mlflow.db")
    cells = [make_cell(runs_dir, f"0a1b2c3{number}", f"lr=1e-{number}") for number in range(3)]
    alone = make_run(runs_dir, "deadbeef")

    processes = [start_once(cells[0]), start_once(cells[1], alone)]
    for process in processes:
        assert process.communicate(timeout=240)[1] == ""
        assert process.returncode == 0
    check_family(runs_dir / "mlflow.db", {"lr=1e-0", "lr=1e-1"})

    home = runs_dir / "sweeps" / "lr"
    (home / "mlflow.json").unlink()  # found again by its tag
    (home / "mlflow.cells.json").unlink()  # asked of the store again
    assert once(*cells)[0] == 0
    check_family(runs_dir / "mlflow.db", {"lr=1e-0", "lr=1e-1", "lr=1e-2"})


def test_a_cell_that_ran_before_its_sweep_does_not_wait_for_good(tmp_path: Path, store_in: Path) -> None:
    before = make_run(tmp_path, "0a1b2c30")
    log_steps(before, range(1, 4), lambda step: 0.5)
    append_event(before, "exited", launch_id="l1", code=0, cause="completed", iteration=3)
    assert once(before)[0] == 0
    begun = make_run(tmp_path, "0a1b2c33")
    assert once(begun)[0] == 0
    with closing(sqlite3.connect(store_in)) as store, store:  # as its own follower has made it, and no more
        store.execute("delete from tags where key = 'orchestrator.state' and value != 'finished'")
    cell = make_cell(tmp_path, "0a1b2c31", "lr=2")
    runs = {"lr=1": before, "lr=2": cell, "lr=3": make_run(tmp_path, "0a1b2c32"), "lr=4": begun}
    cells = [{"id": name, "name": name, "values": {}, "run": f"tiny/{run.run_id}"} for name, run in runs.items()]
    append_line(tmp_path / "sweeps" / "lr" / "ledger.jsonl", {"time": 1.0, "event": "planned", "cells": cells})
    assert once(cell)[0] == 0
    [parent] = [run for run in stored_runs(store_in) if run.name == "lr"]
    counts = {key: value for key, value in parent.tags.items() if ".states." in key and value != "0"}
    assert counts == {"orchestrator.sweep.states.finished": "2", "orchestrator.sweep.states.waiting": "2"}
    assert parent.tags["orchestrator.sweep.best_cell"] == "lr=1"


def check_family(database: Path, names: set[str]) -> None:
    stored = stored_runs(database)
    [parent] = [run for run in stored if run.name == "lr"]
    assert (parent.status, parent.tags["orchestrator.sweep.states.finished"]) == ("FINISHED", str(len(names)))
    assert parent.tags["orchestrator.sweep.metric"] == "train/loss"
    children = {run.name: run for run in stored if run.tags.get("mlflow.parentRunId") == parent.run_id}
    assert set(children) == names
    assert {run.tags["orchestrator.sweep"] for run in children.values()} == {"lr"}
    [other] = [run for run in stored if run.name == "tiny/deadbeef"]
    assert "mlflow.parentRunId" not in other.tags
    assert len(stored) == len(names) + 2
