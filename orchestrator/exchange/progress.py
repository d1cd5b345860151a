"""How far a conversion is: a bar on a terminal, a line now and then elsewhere, both on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")
_SECONDS_BETWEEN_LINES = 10.0


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
