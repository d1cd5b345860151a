"""How the results of a search compare, and cells that it has stopped are continued."""

from __future__ import annotations

import csv
import json

import pytest
from fastapi.testclient import TestClient

from orchestrator.cli.runs.sweeps.search import continue_trial
from orchestrator.cli.runs.sweeps.tables import what_matters
from orchestrator.dashboard.app import create_app
from orchestrator.dashboard.settings import Settings
from orchestrator.review.filters.listing import summaries_in
from orchestrator.review.sweeps.cells import importance_of, view_of
from orchestrator.run_directory.events.search import SearchPlanned, TrialContinued
from orchestrator.sweeps.states import cell_statuses
from tests.unit.sweeps.conftest import Run, wait_until
from tests.unit.sweeps.search_lab import (
    HALVING,
    STEPS,
    Lab,
    searched,
)


def test_a_trial_of_a_cluster_is_continued_here(lab: Lab) -> None:
    sweep = lab.plan(HALVING)
    lab.search(sweep)
    here = searched(sweep).planned
    sweep.append(SearchPlanned(**{**vars(here), "local": False, "cluster": "alps", "parallel": 4}))
    [worst] = [each for each in cell_statuses(sweep, sweep.planned()) if each.entry.name == "lr=1e-5"]
    continue_trial(sweep, "lr=1e-5", local=True)
    planned = searched(sweep).planned
    assert (planned.local, planned.cluster, planned.parallel, planned.shares) == (True, None, 1, here.shares)
    lab.search(sweep)
    [again] = [each for each in cell_statuses(sweep, sweep.planned()) if each.entry == worst.entry]
    assert (worst.state, again.state) == ("stopped", "completed")


def test_results_of_a_search_compare_at_equal_steps(lab: Lab, orchestrator: Run) -> None:
    """A cell that was stopped early and is better there than others at their end comes behind them."""
    sweep = lab.plan(HALVING)
    lab.search(sweep)
    rows = json.loads(orchestrator("sweep", "results", "tiny", "--json")[1])
    reached = [(row["furthest_rung"]["iteration"], row["furthest_rung"]["value"]) for row in rows]
    assert [step for step, _ in reached] == [18, 6, 6, *[2] * 6]
    assert all(reached[step:end] == sorted(reached[step:end]) for step, end in ((1, 3), (3, 9)))
    backwards = json.loads(orchestrator("sweep", "results", "tiny", "--reverse", "--json")[1])
    assert backwards == rows[::-1]
    header, *lines = [line.split() for line in orchestrator("sweep", "results", "tiny")[1].splitlines()[:10]]
    assert header == ["lr", "STATE", "ITERATION", "train/loss", "AT", "STEP", "RUN"]
    assert [(int(line[4]), float(line[3])) for line in lines] == [
        (step, float(f"{loss:.6g}")) for step, loss in reached
    ]
    table = list(csv.DictReader(orchestrator("sweep", "results", "tiny", "--csv")[1].splitlines()))
    assert [(int(row["rung_iteration"]), float(row["rung_value"])) for row in table] == reached
    view = view_of(sweep, {run.key: run for run in summaries_in(sweep.runs_dir)})
    assert [cell.rungs[-1].iteration for cell in view.cells] == [step for step, _ in reached]
    assert (importance_of(view)[0].problem, len(view.current)) == (None, 9)
    rows_of_now = cell_statuses(sweep, sweep.planned())
    assert len({row.rungs[0].iteration for row in rows_of_now}) == 1, "where all were measured, they are compared"
    assert "cannot be computed" not in what_matters(rows_of_now, "train/loss")


def test_a_stopped_trial_is_continued_to_its_end_and_says_until_then_why_it_was_stopped(
    lab: Lab, orchestrator: Run
) -> None:
    sweep = lab.plan(HALVING)
    lab.search(sweep)
    cells = {cell.entry.name: cell for cell in cell_statuses(sweep, sweep.planned())}
    worst = cells["lr=1e-5"]
    assert (worst.state, worst.status.iteration) == ("stopped", 2)
    assert worst.note == "at step 2: rank 9 of 9 at rung 1 by train/loss 3.93"
    assert worst.to_json()["search"] == {
        "rung": 1,
        "rungs": 3,
        "iteration": 2,
        "value": pytest.approx(3.93),
        "rank": 9,
        "of": 9,
        "metric": "train/loss",
        "cause": None,
    }
    continued = ("sweep", "continue", "tiny", "--cell", "lr=1e-5", "--dry-run")
    before = sweep.ledger.read_bytes()
    steps = {"cell": worst.entry.id, "run_id": worst.status.run.run_id, "iteration": 2, "train_iters": STEPS}
    assert json.loads(orchestrator(*continued, "--json")[1]) == {**steps, "local": True, "cluster": None}
    assert orchestrator(*continued)[0] == 0
    assert orchestrator(*continued[:3], "--cell", "lr=1e-3", "--dry-run")[0] == 2, "it is completed"
    assert sweep.ledger.read_bytes() == before

    assert cells["lr=3e-4"].note == "at step 6: rank 3 of 3 at rung 2 by train/loss 1.31931"
    assert (cells["lr=1e-3"].state, cells["lr=1e-3"].note) == ("completed", "")

    with TestClient(create_app(Settings(sweep.runs_dir))) as client:
        wait_until(lambda: "are being read" not in client.get("/sweeps/tiny").text)
        page = client.get("/sweeps/tiny").text
    assert worst.note in page
    assert (
        "halving search: 9 of 9 trials begun, 9 reached rung 1, 3 reached rung 2, 1 trained to the end; over." in page
    )

    steps = lab.machine.steps
    sweep.append(TrialContinued(cell=worst.entry.id))
    lab.search(sweep)
    assert lab.machine.steps == steps + STEPS - 2, "from its checkpoint, and nothing else"
    [again] = [cell for cell in cell_statuses(sweep, sweep.planned()) if cell.entry == worst.entry]
    assert (again.state, again.note, again.status.iteration) == ("completed", "", STEPS)
