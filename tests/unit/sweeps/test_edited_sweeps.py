"""A sweep whose job was edited: its cells go on with safe changes, and with others only when a person says so."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.event_log import append_event
from support.refusals import fail_at

from orchestrator.errors import UserError
from orchestrator.launch.runs import all_runs
from orchestrator.process import Process
from orchestrator.run_directory.checkpoints.commit_markers import write_commit
from orchestrator.run_directory.events.ledger import CellsSubmitted
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import load_resolved
from orchestrator.sweeps.ledger import SweepDir, sweep_dir
from orchestrator.sweeps.loading import LoadedSweep
from orchestrator.sweeps.plans import write_plan
from orchestrator.sweeps.states import cell_statuses
from orchestrator.sweeps.submission import CellStart
from tests.unit.sweeps.conftest import JOB, Run

GRID = "grid: {lr: [1, 2]}"
Load = Callable[[str], LoadedSweep]


@pytest.fixture
def sweep(load: Load, folder: Path) -> SweepDir:
    """A sweep of two cells: one has completed, one was stopped at iteration 5."""
    sweep = sweep_dir("tiny", folder / "runs")
    planned, _ = write_plan(sweep, load(GRID))
    for entry, iteration, cause in zip(planned.cells, (20, 5), ("completed", "stopped"), strict=True):
        end(sweep.run(entry), iteration, cause)
    return sweep


def end(run: RunDir, iteration: int, cause: str) -> None:
    append_event(run, "launched", launch_id="l1", host="elsewhere")
    append_event(run, "started", launch_id="l1", iteration=0)
    run.checkpoint(iteration).mkdir(parents=True)
    write_commit(run.checkpoint(iteration), iteration=iteration, consumed_samples=16 * iteration, files={})
    append_event(run, "exited", launch_id="l1", code=0, cause=cause, message="", iteration=iteration)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[CellStart]:
    """The cells that a command would have started."""
    starts: list[CellStart] = []
    monkeypatch.setattr(
        "orchestrator.cli.runs.sweeps.sweep_run.begin", lambda sweep, cells, *rest, **named: starts.extend(cells)
    )
    monkeypatch.setattr("orchestrator.cli.runs.sweeps.sweep_run.conclude", lambda *arguments, **named: None)
    return starts


@pytest.fixture
def edit(folder: Path, write: Callable[[str], Path], orchestrator: Run) -> Callable[..., tuple[int, str, str]]:
    """edit(line, *options): run the sweep with another line in its job, or instead of one that begins the same."""

    def edit(line: str, *options: str, grid: str = GRID) -> tuple[int, str, str]:
        key = line.partition(":")[0]
        kept = [each for each in JOB.splitlines() if not each.startswith(f"{key}:")]
        (folder / "job.yaml").write_text("\n".join([*kept, line]) + "\n")
        return orchestrator("sweep", "run", write(grid), "--local", *options)

    return edit


KEEP = "checkpoint: {save_interval: 5, keep_last: 9}"


def test_cells_go_on_with_a_safe_key(edit: Any, sweep: SweepDir, started: list[CellStart]) -> None:
    before, cells = all_runs(sweep.runs_dir), sweep.planned().cells
    for _ in range(2):
        started.clear()
        code, out, _ = edit(KEEP)
        assert code == 0
        assert [start.run for start in started] == [sweep.run(cells[1])]
        assert load_resolved(started[0].run.resolved()).checkpoint.keep_last == 9
    assert "checkpoint.keep_last" not in out, "it has it by now"
    assert all_runs(sweep.runs_dir) == before
    assert sweep.planned().cells == cells, "with the ids that the ledger knows them by"
    assert len([event for event in sweep.ledger.read_text().splitlines() if '"planned"' in event]) == 2
    assert load_resolved(sweep.run(cells[0]).resolved()).checkpoint.keep_last == 3, "it is done, and stays as it was"


def test_another_value_is_another_cell_beside_edited_ones(edit: Any, sweep: SweepDir, started: list[CellStart]) -> None:
    assert edit(KEEP, grid="grid: {lr: [2, 3]}")[0] == 0
    assert [start.name for start in started] == ["lr=2", "lr=3"]
    assert started[0].run == sweep.run(sweep.planned().cells[0])
    assert len(all_runs(sweep.runs_dir)) == 3


def test_a_cell_that_is_done_goes_on_where_its_length_grew(
    edit: Any, sweep: SweepDir, started: list[CellStart]
) -> None:
    code, _, _ = edit("schedule: {train_iters: 40}", "--json")
    assert code == 2, "the other one has not completed, and decays otherwise"
    end(sweep.run(sweep.planned().cells[1]), 20, "completed")
    assert edit("schedule: {train_iters: 40}")[0] == 0
    assert [start.job.schedule.train_iters for start in started] == [40, 40]
    assert len(all_runs(sweep.runs_dir)) == 2


def test_a_cell_that_is_done_and_goes_on_is_under_way_until_it_is_done_again(sweep: SweepDir) -> None:
    """`sweep run` waits for it, `cancel` keeps it from starting, and nobody hands it out once more."""
    planned = sweep.planned()
    done, _ = planned.cells
    driver = Process.current().to_record()
    sweep.append(CellsSubmitted(how="local", cluster=None, max_parallel=1, jobs={done.id: "local"}, driver=driver))
    assert [status.state for status in cell_statuses(sweep, planned)] == ["pending", "stopped"]
    end(sweep.run(done), 40, "completed")
    assert [status.state for status in cell_statuses(sweep, planned)] == ["completed", "stopped"]


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--json",)])
def test_other_edits_start_nothing_unasked(
    edit: Any, sweep: SweepDir, started: list[CellStart], options: tuple[str, ...]
) -> None:
    before = sweep.ledger.read_bytes(), all_runs(sweep.runs_dir)
    code, out, err = edit("optimizer: {weight_decay: 0.2}", *options)
    said = json.loads(out)["message"] if "--json" in options else err
    assert (code, started) == (2, [])
    assert "optimizer.weight_decay: 0.01 -> 0.2" in said
    assert "--allow-changes" in said
    assert "--new" in said
    assert (sweep.ledger.read_bytes(), all_runs(sweep.runs_dir)) == before


def test_cells_that_have_lost_what_they_saved_do_not_begin_again_unasked(
    edit: Any, sweep: SweepDir, started: list[CellStart]
) -> None:
    before, runs = all_runs(sweep.runs_dir), [sweep.run(cell) for cell in sweep.planned().cells]
    append_event(runs[1], "checkpoint_saved", iteration=5, seconds=1.0, bytes=1)
    for run, iteration in zip(runs, (20, 5), strict=True):
        (run.checkpoint(iteration) / "commit.json").unlink()
    for line, options in ((KEEP, ()), ("optimizer: {weight_decay: 0.2}", ("--allow-changes",))):
        code, _, err = edit(line, *options)
        assert (code, started, all_runs(sweep.runs_dir)) == (2, [], before)
        assert f"{runs[1].name}/{runs[1].run_id} to continue from; to start another run, add --new" in err
    assert edit("optimizer: {weight_decay: 0.2}", "--new")[0] == 0
    assert [start.run in before for start in started] == [False, False]


def test_a_cell_that_cannot_be_read_does_not_begin_again_unasked(
    edit: Any, sweep: SweepDir, started: list[CellStart]
) -> None:
    run = sweep.run(sweep.planned().cells[1])
    run.events_file.unlink()
    os.mkfifo(run.events_file)
    code, _, err = edit(KEEP)
    assert (code, started) == (2, [])
    assert f"run {run.name}/{run.run_id} cannot be read" in err
    assert edit(KEEP, "--new")[0] == 0


def test_both_ways_out(edit: Any, sweep: SweepDir, started: list[CellStart]) -> None:
    old = all_runs(sweep.runs_dir)
    assert edit("optimizer: {weight_decay: 0.2}", "--allow-changes")[0] == 0
    assert [start.run for start in started] == [sweep.run(sweep.planned().cells[1])]
    assert load_resolved(started[0].run.resolved()).optimizer.weight_decay == 0.2
    started.clear()
    assert edit("optimizer: {weight_decay: 0.3}", "--new")[0] == 0
    assert [start.run in old for start in started] == [False, False]
    assert [entry.name for entry in sweep.left()] == ["lr=1", "lr=2"]


def test_a_refused_start_leaves_the_specs_as_they_were(
    edit: Any, sweep: SweepDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, "orchestrator.cli.runs.sweeps.sweep_run.begin", UserError("SLURM refuses the job"))
    cells = sweep.planned().cells
    assert edit(KEEP)[0] == 2
    assert [len(sweep.run(cell).resolved_generations()) for cell in cells] == [1, 1]
    assert sweep.planned().cells == cells


def test_a_cell_under_way_keeps_its_spec(edit: Any, sweep: SweepDir, started: list[CellStart]) -> None:
    run = sweep.run(sweep.planned().cells[1])
    lease = Lease.acquire(run, launch_id="l2")
    try:
        code, out, _ = edit(KEEP)
    finally:
        lease.release()
    assert (code, started) == (0, [])
    assert "1 cells are under way, and do not get these changes" in out
    assert len(run.resolved_generations()) == 1


def test_a_cell_whose_spec_cannot_be_read_does_not_begin_again(
    edit: Any, sweep: SweepDir, started: list[CellStart]
) -> None:
    run = sweep.run(sweep.planned().cells[1])
    run.resolved().write_text("{")
    code, _, err = edit(KEEP)
    assert (code, started) == (2, [])
    assert f"run {run.path} has saved checkpoints up to iteration 5" in err
