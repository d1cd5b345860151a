"""What a run takes of the disk: its checkpoints by their markers, all else by blocks, and nobody looks twice."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from baseline.packing import kept, unpack

from orchestrator.cli.main import main
from orchestrator.launch.runs import all_runs
from orchestrator.review.filters.listing import summaries_in
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.checkpoints.disk_use import disk_use
from orchestrator.run_directory.rundir import RunDir

BLOCK = 1 << 16
"""More than any disk gives a small file, and few enough bytes to write."""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    unpack(kept("dp"), tmp_path)
    return all_runs(tmp_path / "runs")[0]


def grown(run: RunDir, change: Callable[[], object]) -> int:
    """By how much a change makes it greater."""
    before = disk_use(run, committed(run))
    change()
    return disk_use(run, committed(run)) - before


def test_what_is_counted(run: RunDir, tmp_path: Path) -> None:
    saved = sum(commit.bytes for commit in committed(run))
    assert 0 < saved < disk_use(run, committed(run)) < saved + (1 << 20)
    assert disk_use(run, []) > 0
    large = run.path / "large"
    assert grown(run, lambda: large.write_bytes(os.urandom(4 * BLOCK))) >= 4 * BLOCK
    assert grown(run, lambda: os.link(large, run.logs / "again")) < BLOCK
    (tmp_path / "elsewhere").write_bytes(os.urandom(4 * BLOCK))
    assert grown(run, lambda: (run.path / "link").symlink_to(tmp_path / "elsewhere")) < BLOCK
    assert grown(run, lambda: os.truncate(_made(run.path / "sparse"), 1 << 30)) < BLOCK
    inside = committed(run)[0].path / "unknown"
    assert grown(run, lambda: inside.write_bytes(os.urandom(4 * BLOCK))) == 0, "its marker does not know it"


def _made(path: Path) -> Path:
    path.touch()
    return path


def test_list_status_and_delete_say_it(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    expected = disk_use(run, committed(run))
    folder = str(run.path.parent.parent)
    assert main(["list", "--json", "--runs-dir", folder]) == 0
    [listed] = [each for each in json.loads(capsys.readouterr().out) if each["run_id"] == run.run_id]
    assert listed["disk_bytes"] == expected
    assert main(["list", "--where", "disk > 1kB and disk < 1GB", "--runs-dir", folder]) == 0
    assert run.run_id in capsys.readouterr().out
    assert main(["status", str(run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["disk_bytes"] == expected
    assert main(["status", str(run.path)]) == 0
    assert " of it checkpoints\n" in capsys.readouterr().out
    assert main(["delete", str(run.path), "--dry-run", "--json", "--runs-dir", folder]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == expected
    checkpoints = committed(run)
    assert main(["delete", str(checkpoints[0].path), "--dry-run", "--json", "--runs-dir", folder]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == checkpoints[0].bytes


def test_of_one_that_may_still_change_the_checkpoints_count(run: RunDir) -> None:
    """Nobody looks through the folder of a live run at each request."""
    lines = run.events_file.read_text().splitlines()
    ended = next(number for number, line in enumerate(lines) if json.loads(line)["event"] == "exited")
    run.events_file.write_text("\n".join(lines[:ended]) + "\n")
    [summary] = [each for each in summaries_in(run.path.parent.parent) if each.run == run]
    assert not summary.is_settled
    assert summary.disk_bytes == sum(commit.bytes for commit in committed(run))
