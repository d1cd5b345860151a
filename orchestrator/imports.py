"""Importing large libraries without the work that Python's garbage collector makes of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def staying() -> Iterator[None]:
    """What is imported inside stays until the process ends, and is never looked through for garbage.

    torch and megatron-core make half a million objects: to search them again and again while they are made, and to
    take them apart one by one at the end, is a third of the CPU time of a rank that trains a few steps.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
