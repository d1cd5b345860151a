"""Asking many small things of a disk: in threads where it takes long to answer, as a shared one does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

_THREADS = 128
"""They wait, and hardly compute."""
_ASKED_FIRST = 8
_SLOW_SECONDS = 0.0005
"""That something waits. A disk of this machine, or what it remembers of another, takes some microseconds."""

Item = TypeVar("Item")
Found = TypeVar("Found")


def answers(ask: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
    """`ask(item)` of each, in their order: one after another, or in threads where the first ones had to wait. Raises
    what `ask` does.
    """
    waited = time.perf_counter() - time.thread_time()
    found = [ask(item) for item in items[:_ASKED_FIRST]]
    waited = time.perf_counter() - time.thread_time() - waited
    rest = items[_ASKED_FIRST:]
    if len(rest) == 0 or waited < _SLOW_SECONDS * len(found):
        return [*found, *map(ask, rest)]
    from concurrent.futures import ThreadPoolExecutor  # takes long to import, and most disks are fast

    threads = min(_THREADS, len(rest))
    with ThreadPoolExecutor(threads) as pool:  # one task for each: one for each item takes as long as asking it
        parts = [*pool.map(lambda first: [ask(item) for item in rest[first::threads]], range(threads))]
    return [*found, *(parts[place % threads][place // threads] for place in range(len(rest)))]
