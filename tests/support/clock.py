"""Another time than it is, and one that other processes do not lengthen."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
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
        waits, ended = _Waits(self._threads, threading.get_native_id()), threading.Event()

        def look() -> None:
            while not ended.wait(_SECONDS_BETWEEN_LOOKS):
                waits.look()

        looking = threading.Thread(target=look)
        looking.start()
        waits.others.add(str(looking.native_id))
        began = time.monotonic()
        try:
            action()
        finally:
            done = time.monotonic()
            ended.set()
            looking.join()
        waits.look()
        return done - began - covered(waits.that_count(), began, done)


_SECONDS_BETWEEN_LOOKS = 0.02
_Span = tuple[float, float]


class _Waits:
    """When threads of a server, and the one that asks, waited for a core. Linux counts the seconds of a wait when it is
    over: at each look, those that were added are taken for the last before it.
    """

    def __init__(self, threads: Path, own: int) -> None:
        self._threads, self._own = threads, Path(f"/proc/self/task/{own}")
        self.others = {str(own)}
        """Threads of this process that are not the server's."""
        self._spans: dict[Path, list[_Span]] = defaultdict(list)
        self._before = self._seconds()

    def look(self) -> None:
        found, now = self._seconds(), time.monotonic()
        for thread in found.keys() & self._before.keys():
            if added := found[thread] - self._before[thread]:
                self._spans[thread].append((now - added, now))
        self._before = found

    def that_count(self) -> list[_Span]:
        """Those of the thread that asks, and of the one of the server that has waited longest: the others may have
        waited for the same core at the same time.
        """
        own = self._spans.pop(self._own, [])
        return own + max(self._spans.values(), key=lambda spans: sum(end - start for start, end in spans), default=[])

    def _seconds(self) -> dict[Path, float]:
        threads = [thread for thread in self._threads.glob("*") if thread.name not in self.others]
        return {thread: _without_a_core(thread) for thread in (self._own, *threads)}


def covered(spans: Iterable[tuple[float, float]], began: float, ended: float) -> float:
    """The seconds of a time that lie in one of these or several."""
    total = 0.0
    for start, end in sorted(spans):
        if (last := min(end, ended)) > (first := max(start, began)):
            total += last - first
            began = last
    return total


def _without_a_core(thread: Path) -> float:
    """The seconds for which a thread has waited for one, as Linux counts them; 0 where it does not, or has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return int((thread / "schedstat").read_text().split()[1]) / 1e9
    return 0.0
