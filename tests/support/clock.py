"""Another time than it is, and one that other processes do not lengthen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest


def stop_at(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """It is this time (since the epoch) for everybody, and stays so."""
    monkeypatch.setattr(time, "time", lambda: seconds)


def own_clock(monkeypatch: pytest.MonkeyPatch, module: str, clock: Any) -> None:
    """A module goes by this clock in place of Python's module `time`."""
    monkeypatch.setattr(f"{module}.time", clock)


class UndisturbedClock:
    """Tells how long a server took by the clock, but for the time in which the thread that asks, or one of the
    server's, could have run and had no core, as other processes had them. What a thread waits for in any other way
    counts.
    """

    def __init__(self, server: int) -> None:
        """`server`: its process."""
        self._threads = Path(f"/proc/{server}/task")

    def seconds(self, action: Callable[[], object]) -> float:
        """How long it takes to do this."""
        began, own, others = time.monotonic(), _without_a_core(_OWN), self._without_cores()
        action()
        found, ended = self._without_cores(), time.monotonic()
        # Threads of the server may have waited for the same core at the same time: the longest wait counts.
        longest = max((found[thread] - others[thread] for thread in found.keys() & others.keys()), default=0.0)
        return ended - began - longest - (_without_a_core(_OWN) - own)

    def _without_cores(self) -> dict[str, float]:
        """Of each thread but this one."""
        own = str(threading.get_native_id())
        return {thread.name: _without_a_core(thread) for thread in self._threads.glob("*") if thread.name != own}


_OWN = Path("/proc/thread-self")


def _without_a_core(thread: Path) -> float:
    """The seconds for which a thread has waited for one, as Linux counts them; 0 where it does not, or has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return int((thread / "schedstat").read_text().split()[1]) / 1e9
    return 0.0
