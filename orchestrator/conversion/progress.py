"""How far a conversion is: a bar on a terminal, a line now and then elsewhere, both on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
    track,
)

Item = TypeVar("Item")
_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Gives a function that any thread may tell of so many bytes more, of `total`."""
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=total)
            yield lambda count: bar.advance(task, count)
        return
    yield _Lines(total, what).advance


class _Lines:
    def __init__(self, total: int, what: str) -> None:
        self._total, self._what = total, what
        self._done, self._begun = 0, time.monotonic()
        self._last = self._begun
        self._one_at_a_time = threading.Lock()

    def advance(self, count: int) -> None:
        with self._one_at_a_time:
            self._done += count
            now = time.monotonic()
            if now - self._last < _SECONDS_BETWEEN_LINES:
                return
            self._last = now
            rate = self._done / (now - self._begun)
            said = f"{self._what}: {self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB, {rate / 1e6:.0f} MB/s"
            print(said, file=sys.stderr, flush=True)


def shown(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """The items one by one, with progress."""
    if sys.stderr.isatty():
        yield from track(items, description=what, total=total, console=Console(stderr=True))
        return
    last = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(f"{what}: {number} of {total} weights", file=sys.stderr, flush=True)
