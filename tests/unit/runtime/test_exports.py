"""Which exports are made up for and which are kept, where a run fell back and takes a course again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.event_log import append_event, lines_of

from orchestrator.run_directory.checkpoints.commit_markers import write_commit
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.checkpointing.exports import Export, Exports, missed
from orchestrator.runtime.records.records import Records
from orchestrator.spec.sections.checkpoint import CheckpointExportSpec


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "job" / "abcd1234")


@pytest.fixture
def lease(run: RunDir) -> Iterator[Lease]:
    run.path.mkdir(parents=True)
    lease = Lease.acquire(run, launch_id="test")
    yield lease
    lease.release()


def policy(keep_last: int | None = None) -> CheckpointExportSpec:
    return CheckpointExportSpec(format="hf", interval=10, keep_last=keep_last)


def save(run: RunDir, iteration: int, **details: Any) -> None:
    run.checkpoint(iteration).mkdir(parents=True, exist_ok=True)
    write_commit(run.checkpoint(iteration), iteration=iteration, consumed_samples=0, files={}, **details)


@pytest.mark.parametrize("keep_last", [1, 2])
def test_what_is_kept_does_not_depend_on_later_exports(run: RunDir, lease: Lease, keep_last: int) -> None:
    """A run that fell back keeps what it exports now."""
    for iteration in (10, 20, 30, 80, 90):
        (run.exports("hf") / f"iter_{iteration:07d}").mkdir(parents=True)
    exports = Exports(run, policy(keep_last), lease, Records(run, lease))
    draft = run.exports("hf") / ".draft"
    draft.mkdir()
    process = subprocess.Popen([sys.executable, "-c", "print('{\"bytes\": 1}')"], stdout=subprocess.PIPE)
    exports._running = Export(40, draft, time.time(), process)
    assert not exports.poll(60)
    assert [number for number, _ in run.export_dirs("hf")] == [*[10, 20, 30, 40][-keep_last:], 80, 90]
    assert [event["iteration"] for event in lines_of(run) if event["event"] == "exported"] == [40]


def test_a_checkpoint_that_was_written_anew_is_exported_anew(run: RunDir) -> None:
    before = time.time() - 100
    for iteration in (5, 10, 20, 30, 40):
        save(run, iteration, time=before)
    for iteration in (10, 20):
        append_event(run, "exported", iteration=iteration)
        (run.exports("hf") / f"iter_{iteration:07d}").mkdir(parents=True)
    assert missed(run, policy(), 30) == [30]
    save(run, 20, time=time.time() + 100)
    assert missed(run, policy(), 30) == [20, 30]


def test_an_export_that_was_taken_away_is_not_missed(run: RunDir) -> None:
    save(run, 10, time=time.time() - 100)
    save(run, 20)  # does not say when
    assert missed(run, policy(), 20) == [10, 20]
    for iteration in (10, 20):
        append_event(run, "exported", iteration=iteration)
    assert missed(run, policy(), 20) == []
