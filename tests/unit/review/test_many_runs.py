"""A folder of 5,000 runs: listed in a second, one of them shown at once, in little memory, also from a slow disk."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.many_runs import THOUSANDS, Thousands, spent
from support.pace import slowness

pytestmark = [pytest.mark.alone, pytest.mark.slow("5,000 runs are made and read")]

LIST_SECONDS, STATUS_SECONDS, SLOW_SECONDS = 1.0, 0.4, 3.0
"""At the promised pace: processor seconds of a whole program; of a slow disk also the seconds that it lets wait."""
QUESTIONS_OF_A_RUN = 4
"""To a slow disk, of a run that has not changed."""
MEGABYTES = 300
ATTEMPTS = 5
TESTS = Path(__file__).parents[2]


def ageless(listed: str) -> str:
    """A listing without its last column, how long ago each run began: a day may end between two of them."""
    return re.sub(r" +\d+ \w+$", "", listed, flags=re.MULTILINE)


def best_of(limit: float, *words: str) -> tuple[str, float, float]:
    """What a command prints, its least seconds at the promised pace, and its most megabytes; it is tried until it is
    fast enough, for the best tells least of what else the machine does.
    """
    said, seconds, megabytes = [], [], []
    while min(seconds, default=limit) >= limit and len(said) < ATTEMPTS:
        before = slowness()
        printed, used, most = spent(*words)
        said.append(printed)
        seconds.append(used / max(before, slowness()))
        megabytes.append(most)
    assert len({*map(ageless, said)}) == 1
    return said[0], min(seconds), max(megabytes)


def test_without_an_index_and_with_it(thousands: Thousands) -> None:
    place = ("list", "--runs-dir", str(thousands.folder))
    assert len(thousands.listed.splitlines()) == THOUSANDS + 1
    listed, seconds, megabytes = best_of(LIST_SECONDS, *place)
    print(f"without the index {thousands.megabytes:.0f} MB; with it {seconds:.2f} s, {megabytes:.0f} MB")
    assert ageless(listed) == ageless(thousands.listed)
    assert seconds < LIST_SECONDS
    assert max(thousands.megabytes, megabytes) < MEGABYTES


def test_some_of_them_and_one(thousands: Thousands) -> None:
    place = ("--runs-dir", str(thousands.folder))
    filtered, seconds, _ = best_of(LIST_SECONDS, "list", *place, "--where", "lr > 0.4 and loss < 5", "--sort", "loss")
    assert 1 < len(filtered.splitlines()) < THOUSANDS + 1
    _, shown, _ = best_of(STATUS_SECONDS, "status", "dp-03/00000003", *place)
    print(f"some of them {seconds:.2f} s, one of them {shown:.2f} s")
    assert shown < STATUS_SECONDS


def test_from_a_slow_disk(thousands: Thousands) -> None:
    place = ("list", "--runs-dir", str(thousands.folder))
    times: list[float] = []
    while len(times) < ATTEMPTS and min(times, default=SLOW_SECONDS) >= SLOW_SECONDS:
        before = slowness()
        command = [sys.executable, "-m", "support.slow_disk", str(thousands.folder), *place]
        finished = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True)
        seconds, processor, questions = map(float, finished.stderr.split()[-3:])
        assert ageless(finished.stdout) == ageless(thousands.listed)
        times.append(max(0.0, seconds - processor) + processor / max(before, slowness()))
    print(f"from a slow disk {min(times):.2f} s, {questions:.0f} questions")
    assert questions < QUESTIONS_OF_A_RUN * THOUSANDS + 2 * len([*thousands.folder.iterdir()]) + 50
    assert min(times) < SLOW_SECONDS, times
