"""Python's garbage collector in a training step: at one place of it, on every rank the same.

By itself it looks for garbage whenever a rank happens to have made enough objects, and the ranks that wait for that one
in their next collective wait as well.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_STEPS_TO_ALL = 100
"""Steps after which old objects are looked through too."""


@contextmanager
def collected_by_hand() -> Iterator[None]:
    """Inside, nothing is collected but by `collect`."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect(iteration: int) -> None:
    """Give up what the step has made and nobody can reach: a fraction of a millisecond, and more every 100th time."""
    gc.collect(2 if iteration % _STEPS_TO_ALL == 0 else 1)
