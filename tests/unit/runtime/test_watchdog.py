"""A process that makes no progress is ended, and leaves its stacks."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("watchdog_program.py")


def watched(what: str, folder: Path) -> int:
    return subprocess.run([sys.executable, str(PROGRAM), what, str(folder)], timeout=120, check=False).returncode


def test_a_hang_ends_the_process_and_leaves_its_stacks(tmp_path: Path) -> None:
    assert watched("hang", tmp_path) == 72
    iteration, seconds = (tmp_path / "hang").read_text().split()
    assert iteration == "7", "the last that was named"
    assert float(seconds) > 0.5
    stacks = (tmp_path / "stacks" / "rank-00002.txt").read_text()
    assert re.match(r"no progress for \d+\.\d", stacks)
    assert "a_function_that_hangs" in stacks


@pytest.mark.parametrize("what", ["beat", "rest"])
def test_no_hang_while_there_is_progress_or_none_is_due(tmp_path: Path, what: str) -> None:
    """Neither before the first beat, nor while it rests."""
    assert watched(what, tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_is_gone_is_noticed(tmp_path: Path) -> None:
    assert watched("orphan", tmp_path) == 0
    deadline = time.monotonic() + 60
    while not (tmp_path / "orphaned").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
