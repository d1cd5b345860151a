"""While a test looks at pages no other process of the test run changes this machine's network."""

from __future__ import annotations

import fcntl
import multiprocessing
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.faults import wait_until
from support.network import GATE, changing, unchanged

fork = multiprocessing.get_context("fork")
ROUNDS = 40


def note(folder: Path, line: str) -> None:
    with open(folder / "notes", "a") as notes:
        notes.write(f"{line}\n")


def notes(folder: Path) -> list[str]:
    return (folder / "notes").read_text().split()


def repeat(hold: Callable[[Path], AbstractContextManager[Any]], words: list[str], folder: Path, rounds: int) -> None:
    begun, done = words
    for _ in range(rounds):
        with hold(folder):
            note(folder, begun)
            time.sleep(0.001)
            note(folder, done)


look = partial(repeat, unchanged, ["look", "looked"])
change = partial(repeat, changing, ["change", "changed"])


def is_in_the_gate(folder: Path) -> bool:
    with open(folder / GATE, "a") as gate:
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_nobody_changes_what_another_looks_at(tmp_path: Path) -> None:
    processes = [fork.Process(target=do, args=(tmp_path, ROUNDS)) for do in (look, look, change, change)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    looking = 0
    lines = iter(notes(tmp_path))
    for line in lines:
        if line == "change":
            assert looking == 0
            assert next(lines) == "changed"
        else:
            looking += 1 if line == "look" else -1
    with unchanged(tmp_path) as changes:
        assert changes == 2 * ROUNDS


def test_a_change_waits_only_for_those_who_look_already(tmp_path: Path) -> None:
    """A stream of tests that overlap each other would else put it off without end."""
    changer, looker = (fork.Process(target=do, args=(tmp_path, 1)) for do in (change, look))
    with unchanged(tmp_path):
        note(tmp_path, "held")
        changer.start()
        wait_until(lambda: is_in_the_gate(tmp_path), "the one who wants to change the network")
        looker.start()
        looker.join(0.2)
        note(tmp_path, "free")
    for process in (changer, looker):
        process.join()
        assert process.exitcode == 0
    assert notes(tmp_path) == ["held", "free", "change", "changed", "look", "looked"]


def test_what_fails_lets_the_others_go_on(tmp_path: Path) -> None:
    for hold in (unchanged, changing):
        with pytest.raises(ValueError, match="of its own"), hold(tmp_path):
            raise ValueError("of its own")
    with changing(tmp_path):
        pass
    with unchanged(tmp_path), unchanged(tmp_path) as changes:
        assert changes == 2
