"""Promised seconds on machines of any pace."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

COUNTED = 0.018
"""Processor seconds of `_count` on the machine that the promises were made on."""


def at_the_promised_pace(action: Callable[[], object], enough: float = 0.0, attempts: int = 1) -> float:
    """Processor seconds of `action` on the machine that the promises were made on: its best of as many attempts,
    or fewer where `enough` is undercut, each beside a count that tells how slow this machine is at that moment.
    """
    best = math.inf
    while attempts and best >= enough:
        attempts -= 1
        before = slowness()
        spent = _seconds(action)
        best = min(best, spent / max(before, slowness()))
    return best


def slowness() -> float:
    """How many times as long as there everything takes here, at this moment; 1 on a faster machine."""
    return max(1.0, _seconds(_count) / COUNTED)


def _seconds(action: Callable[[], object]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


def _count() -> dict[str, float]:
    """What Python does most: names, look-ups, small numbers."""
    found: dict[str, float] = {}
    for number in range(60_000):
        name = f"key_{number % 977}"
        found[name] = found.get(name, 0.0) + number * 0.5
    return found
