"""Python's garbage collector in a training step: it runs at the same point on every rank.

By itself it looks for garbage whenever a rank happens to have made enough objects, and the ranks that wait for that one
in their next collective wait as well.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_STEPS_TO_ALL = 100
"""Steps after which old objects are collected too."""


@contextmanager
def collected_by_hand() -> Iterator[None]:
    """Inside, only `collect` collects garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect(iteration: int) -> None:
    """Free the unreachable objects of a step: a fraction of a millisecond, and more every 100th time."""
    gc.collect(2 if iteration % _STEPS_TO_ALL == 0 else 1)
