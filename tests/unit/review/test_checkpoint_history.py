"""The checkpoints of a run: what is there, what was, and what is wrong."""

from __future__ import annotations

from pathlib import Path

from support.event_log import log_of

from orchestrator.review.checkpoint_history import checkpoints_of, measured_in
from orchestrator.run_directory.checkpoints.commit_markers import file_record, write_commit
from orchestrator.run_directory.results.record import Measure, Result, result_path, write_result
from orchestrator.run_directory.rundir import RunDir


def save(run: RunDir, iteration: int) -> Path:
    folder = run.checkpoint(iteration)
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"w" * iteration)
    files = {"weights": file_record(folder / "weights")}
    write_commit(folder, iteration=iteration, consumed_samples=iteration * 8, files=files)
    return folder


def result(iteration: int) -> Result:
    return Result("lambada", "lambada", "0" * 16, iteration, "c", {"accuracy": Measure(0.5)}, {}, {}, [], 5.0, 1.0)


def test_what_lies_on_the_disk_goes_before_what_was_said(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for iteration in (20, 30, 40):
        save(run, iteration)
    (run.checkpoint(30) / "weights").write_bytes(b"short")
    run.checkpoint(50).mkdir()
    (run.exports("hf") / "iter_0000020").mkdir(parents=True)
    write_result(result_path(run.evaluations, 20, "lambada", "0" * 16), result(20))
    events = [
        {"event": "checkpoint_saved", "time": 1.0, "iteration": 10, "bytes": 100, "seconds": 0.5},
        {"event": "checkpoint_saved", "time": 2.0, "iteration": 20, "bytes": 1, "seconds": 0.5},
        {"event": "checkpoint_failed", "time": 3.0, "iteration": 45, "message": "no space left"},
        {"event": "checkpoint_saved", "time": "?", "iteration": "x"},
    ]
    found = checkpoints_of(run, log_of(*events))
    assert [(each.iteration, each.condition) for each in found] == [
        (50, "unfinished"),
        (45, "failed"),
        (40, "whole"),
        (30, "damaged"),
        (20, "whole"),
        (10, "removed"),
    ]
    assert (found[1].note, found[4].bytes, found[4].seconds, found[4].exports) == ("no space left", 20, 0.5, ["hf"])
    assert found[3].note is not None
    assert "5 bytes instead of 30" in found[3].note
    assert found[2].time is not None
    assert [each.iteration for each in measured_in(found)] == [20]


def test_a_run_without_any(tmp_path: Path) -> None:
    assert checkpoints_of(RunDir(tmp_path / "none"), []) == []
