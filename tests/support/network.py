"""This machine's network while tests look at pages: Chromium aborts its requests when an address comes or goes.

A cluster of tests/slurm adds a link to this machine, and removes it, while another process of the test run may be in a
browser. Both agree on a file in the folder that all processes of the run have in common.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

GATE = "network.gate"
_LOCK = "network.lock"


@contextmanager
def unchanged(folder: Path) -> Iterator[int]:
    """The network stays as it is. How often it has been changed before."""
    with open(folder / _LOCK, "a") as lock:
        # Whoever wants to change the network stands in the gate, so that those who come after wait for it.
        with open(folder / GATE, "a") as gate, _held(gate, fcntl.LOCK_EX):
            fcntl.flock(lock, fcntl.LOCK_SH)
        with _held(lock, fcntl.LOCK_SH):
            yield _changes(folder)


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Nobody needs the network unchanged. Not to be asked for inside `unchanged`, whose end it would wait for."""
    with (
        open(folder / GATE, "a") as gate,
        _held(gate, fcntl.LOCK_EX),
        open(folder / _LOCK, "a") as lock,
        _held(lock, fcntl.LOCK_EX),
    ):
        lock.write("x")
        lock.flush()
        yield


def _changes(folder: Path) -> int:
    return (folder / _LOCK).stat().st_size


@contextmanager
def _held(file: IO[str], how: int) -> Iterator[None]:
    fcntl.flock(file, how)
    try:
        yield
    finally:
        # Closing is not enough: a process that was forked meanwhile has the file open as well.
        fcntl.flock(file, fcntl.LOCK_UN)
