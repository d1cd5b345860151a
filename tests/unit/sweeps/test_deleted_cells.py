"""A deleted cell of a sweep stays deleted, until somebody has it back or begins it anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.api.housekeeping import deletion, emptying
from orchestrator.api.housekeeping.targets import find_target
from orchestrator.launch.runs import all_runs
from orchestrator.process import Process
from orchestrator.review.sweeps.cells import view_of
from orchestrator.run_directory.events.ledger import CellsDeleted, CellsRestored, CellsSubmitted, read_ledger
from orchestrator.run_directory.labels import read_labels
from orchestrator.run_directory.rundir import RunDir
from orchestrator.run_directory.trash import trashed
from orchestrator.sweeps.ledger import SweepDir, sweep_dir
from orchestrator.sweeps.loading import LoadedSweep
from orchestrator.sweeps.plans import match_cells, write_plan
from orchestrator.sweeps.states import cell_statuses
from tests.unit.sweeps.conftest import JOB, Run

Load = Callable[[str], LoadedSweep]
GRID = "grid: {lr: [1, 2, 3]}"


@pytest.fixture
def sweep(load: Load, folder: Path) -> SweepDir:
    """Three cells that were written down; nothing was started."""
    sweep = sweep_dir("tiny", folder / "runs")
    write_plan(sweep, load(GRID))
    return sweep


def states(sweep: SweepDir) -> list[str]:
    return [status.state for status in cell_statuses(sweep, sweep.planned())]


def first_run(sweep: SweepDir) -> RunDir:
    return sweep.run(sweep.planned().cells[0])


def test_a_sweep_keeps_its_name_and_its_cells_theirs(orchestrator: Run, sweep: SweepDir) -> None:
    """Its cells have the name of their job, which may be the sweep's, too."""
    code, out, err = orchestrator("rename", "tiny", "rates")
    assert (code, out, err.startswith("error: sweep tiny keeps its name")) == (2, "", True)
    assert [run.path.parent.name for run in all_runs(sweep.runs_dir)] == ["tiny"] * 3
    assert all(read_labels(sweep.run(cell).path).name is None for cell in sweep.planned().cells)
    assert orchestrator("rename", first_run(sweep).run_id, "best")[0] == 0
    assert orchestrator("note", "tiny", "the rates of the paper")[0] == 0


def test_by_whatever_way_it_was_deleted(orchestrator: Run, sweep: SweepDir, load: Load, folder: Path) -> None:
    job_file = folder / "job.yaml"
    first, second, _ = (sweep.run(cell) for cell in sweep.planned().cells)
    assert orchestrator("delete", first.run_id, "--yes")[0] == 0
    shutil.rmtree(second.path)
    assert states(sweep) == ["deleted", "deleted", "missing"]
    assert json.loads(orchestrator("sweep", "status", "tiny", "--json")[1])["states"] == {"deleted": 2, "missing": 1}
    said = orchestrator("sweep", "status", "tiny")[1]
    assert "2 deleted, 1 missing" in said
    assert "`sweep run … --deleted` has them begin anew" in said
    view = view_of(sweep, {})
    assert sorted(cell.state for cell in view.cells) == ["deleted", "deleted", "missing"]
    again = match_cells(sweep, load(GRID))
    assert [each.deleted is not None for each in again] == [True, True, False]
    write_plan(sweep, load(GRID), again)
    assert [run.path.exists() for run in (first, second)] == [False, False]
    job_file.write_text(job_file.read_text().replace("save_interval: 5", "save_interval: 5, keep_last: 7"))
    edited = match_cells(sweep, load(GRID))
    assert [each.deleted is not None for each in edited] == [True, True, False], "also where the job was edited"
    job_file.write_text(JOB)
    anew = match_cells(sweep, load(GRID), with_deleted=True)
    write_plan(sweep, load(GRID), anew)
    sweep.append(CellsRestored(cells=tuple(each.id for each in anew)))
    assert states(sweep) == ["missing"] * 3
    assert not first.path.exists(), "the one in the trash keeps its id"


def test_it_is_not_trained_again(
    orchestrator: Run, write: Callable[[str], Path], folder: Path, until: Callable[..., None]
) -> None:
    file = write("grid: {lr: [1e-3, 2e-3]}")
    assert orchestrator("sweep", "run", file, "--local")[0] == 0
    sweep = sweep_dir("tiny", folder / "runs")
    assert states(sweep) == ["completed", "completed"]
    first = first_run(sweep)
    shutil.rmtree(first.path)
    for command in (("sweep", "retry", "tiny", "--local"), ("sweep", "run", file, "--local")):
        code, out, err = orchestrator(*command)
        assert (code, "nothing to start" in out, first.path.exists()) == (0, True, False), err
    until(lambda: not any(each.driver is not None and each.driver.is_alive for each in sweep.submissions().values()))
    code, out, err = orchestrator("sweep", "run", file, "--local", "--deleted")
    assert (code, states(sweep)) == (0, ["completed", "completed"]), out + err


def test_undoing_makes_it_a_cell_again(orchestrator: Run, sweep: SweepDir) -> None:
    first = first_run(sweep)
    orchestrator("delete", first.run_id, "--yes")
    assert read_ledger(sweep.ledger).all(CellsDeleted)[0].cells == (sweep.planned().cells[0].id,)
    assert orchestrator("delete", first.run_id, "--undo")[0] == 0
    assert states(sweep) == ["missing"] * 3


def test_a_sweep_is_deleted_with_its_own_cells(orchestrator: Run, sweep: SweepDir, load: Load, folder: Path) -> None:
    runs_dir = folder / "runs"
    assert find_target("tiny", runs_dir) == sweep, "its cells share its name"
    assert orchestrator("tag", "tiny", "wide")[0] == 0
    assert {read_labels(run.path).tags for run in all_runs(runs_dir)} == {("wide",)}
    other = sweep_dir("other", runs_dir)
    write_plan(other, load("grid: {lr: [3, 4]}\nname: other"))
    assert orchestrator("archive", "tiny")[0] == 0
    assert "tiny" not in orchestrator("sweep", "list")[1]
    assert "tiny" in orchestrator("sweep", "list", "--archived")[1]
    assert "Or did you mean sweep other?" in orchestrator("delete", "othre", "--yes")[2]
    out = orchestrator("delete", "tiny", "--yes")[1]
    assert "3 runs, 1 sweep deleted" in out
    assert "sweep other stays, without 1 of its cells\n" in out
    assert "sweep tiny" not in out
    assert not sweep.path.exists()
    assert states(other) == ["deleted", "missing"], "it had adopted a cell of this one"
    assert orchestrator("delete", "other", "--yes")[0] == 0
    assert all_runs(runs_dir) == []
    assert "sweep other was deleted: `orchestrator delete other" in orchestrator("archive", "other")[2]
    assert orchestrator("delete", "sweeps/tiny", "--undo")[0] == 0
    assert states(sweep) == ["missing"] * 3
    assert len(trashed(runs_dir)) == 2
    emptying.prune(trashed(runs_dir), runs_dir)
    assert states(sweep) == ["missing"] * 3


def test_a_cell_that_a_driver_will_start_is_not_deleted(orchestrator: Run, sweep: SweepDir) -> None:
    entry = sweep.planned().cells[0]
    driver = Process.current().to_record()
    sweep.append(CellsSubmitted(how="local", cluster=None, max_parallel=1, jobs={entry.id: "local"}, driver=driver))
    run_id = first_run(sweep).run_id
    for name, way_out in ((run_id, f"cancel {run_id}"), ("tiny", "sweep cancel tiny")):
        code, _, err = orchestrator("delete", name, "--yes")
        assert (code, "is about to be started by its sweep: nothing was deleted" in err) == (2, True), err
        assert f"`orchestrator {way_out}" in err
    assert len(deletion.cells_at(sweep.runs_dir, entry.run)) == 1
