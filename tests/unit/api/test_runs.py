"""Runs, as a Python program has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.event_log import append_event
from support.odd_files import whole_run

import orchestrator
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import MetricLog


@pytest.fixture
def folder(tmp_path: Path) -> RunDir:
    return whole_run("well", tmp_path)


def record(run: RunDir, iteration: int, **values: float) -> None:
    named = {key.replace("__", "/"): value for key, value in values.items()}
    MetricLog(run, lambda: None).append(iteration, 4 * iteration, 128 * iteration, named, measured=1e9 + iteration)


def test_a_run_is_found_as_the_commands_find_it(folder: RunDir, tmp_path: Path) -> None:
    whole_run("other", tmp_path)
    assert [run.name for run in orchestrator.runs(runs_dir=tmp_path)] == ["well", "other"]
    [run] = orchestrator.runs("well", runs_dir=tmp_path)
    assert run == orchestrator.find_run("well", tmp_path) == orchestrator.find_run(folder.path)
    assert (run.path, run.run_id, run.spec().name) == (folder.path, folder.run_id, "well")
    with pytest.raises(orchestrator.RunNotFound):
        orchestrator.find_run("nobody", tmp_path)


def test_how_it_stands(folder: RunDir) -> None:
    run = orchestrator.Run(folder.path)
    status = run.status()
    assert (status.state, status.cause, status.iteration) == ("failed", "bug", 3)
    assert [commit.iteration for commit in run.checkpoints()] == [2]
    assert ("rank-00000.log", "it failed") in run.logs(rank=0) or run.logs(rank=0)[0][1] == "it failed"
    assert len(run.logs()) > len(run.logs(rank=0)) == 1


def test_steps_that_a_crash_undid_count_once(folder: RunDir) -> None:
    """Six steps, of which a resume from the fourth does two again; then a resume from the fifth that only begins."""
    folder.metrics_file.unlink()
    for step in range(1, 7):
        record(folder, step, train__loss=10.0 - step)
    record(folder, 4, validation__loss=5.0)
    append_event(folder, "started", launch_id="second", iteration=4, token=2)
    for step in (5, 6):
        record(folder, step, train__loss=float(step), train__new=1.0)
    append_event(folder, "started", launch_id="third", iteration=5, token=3)
    record(folder, 6, train__loss=0.5)
    table = orchestrator.Run(folder.path).metrics()
    assert table.index.name == "iteration"
    assert list(table.index) == [1, 2, 3, 4, 5, 6]
    assert list(table["train/loss"]) == [9.0, 8.0, 7.0, 6.0, 5.0, 0.5]
    assert list(table["start"]) == [1, 1, 1, 1, 2, 3]
    assert table.index[table["resumed"]].tolist() == [5, 6]
    assert set(table["stage"]) == {1}
    assert list(table["samples"]) == [4, 8, 12, 16, 20, 24]
    assert table["validation/loss"].dropna().to_dict() == {4: 5.0}
    assert table["train/new"].dropna().index.tolist() == [5, 6]
    assert table["time"].iloc[0].timestamp() == 1e9 + 1


def test_steps_after_the_last_resume_are_left_out_until_they_are_done_again(folder: RunDir) -> None:
    folder.metrics_file.unlink()
    for step in (1, 2, 3, 4, 2):
        record(folder, step, train__loss=float(step))
    assert list(orchestrator.Run(folder.path).metrics().index) == [1, 2]


def test_a_run_that_has_measured_nothing_has_an_empty_table(folder: RunDir) -> None:
    folder.metrics_file.unlink()
    table = orchestrator.Run(folder.path).metrics()
    assert len(table) == 0
    assert {"time", "samples", "tokens", "start", "resumed", "stage"} <= set(table.columns)
