"""The first of many numbers that is small enough, with few questions asked."""

from __future__ import annotations

import math
from collections.abc import Callable

_BY_LINE = 4
"""How often a straight line may tell where to look."""


def first_within(needed: Callable[[int], int], last: int, limit: float) -> int:
    """The first number whose bytes are within the limit, of falling ones: that of 0 are not, and of `last` they are.

    Each layer that is recomputed saves about as much as the one before: a straight line between what is known finds it,
    and halving where it does not.
    """
    first, asked = 0, 0
    while last - first > 1:
        above, below = needed(first), needed(last)
        share = (above - limit) / (above - below) if asked < _BY_LINE else 0.5
        middle = min(max(first + math.ceil(share * (last - first)), first + 1), last - 1)
        first, last = (first, middle) if needed(middle) <= limit else (middle, last)
        asked += 1
    return last
