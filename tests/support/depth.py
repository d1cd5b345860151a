"""How many examples hypothesis draws for a test that says a number of its own, which no profile reaches."""

from __future__ import annotations

from hypothesis import settings

FAST = 10
"""The most that a test draws under the profile `fast`."""


def examples(count: int) -> int:
    """So many in the whole suite, and no more than `FAST` under the profile `fast`."""
    return min(count, FAST) if settings().max_examples == FAST else count
