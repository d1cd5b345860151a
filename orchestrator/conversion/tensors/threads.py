"""Doing something to many weights on a few threads: reading, sums and writing let go of Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

Item = TypeVar("Item")

_MOST = 8
"""More do not make a disk faster, and each holds a weight."""


def default_threads() -> int:
    """One for each core that this process may use, and not many."""
    return min(_MOST, len(os.sched_getaffinity(0)))


def in_threads(action: Callable[[Item], None], items: Sequence[Item], threads: int) -> None:
    """The action on each item, begun in their order. Raises what one raises that fails; no other is begun then."""
    with ThreadPoolExecutor(threads) as pool:
        begun = [pool.submit(action, item) for item in items]
        try:
            for future in as_completed(begun):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
