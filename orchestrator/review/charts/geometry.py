"""Where curves break and which numbers stand along an axis, for outputs that draw without plotly."""

from __future__ import annotations

import math
from collections.abc import Iterable

Point = tuple[float, float]

LARGEST = 1e100
"""Beyond it the distance of two points may be no number."""


def point_of(x: object, y: object) -> Point | None:
    """A point that can be drawn; None for a gap."""
    if not isinstance(x, int | float) or not isinstance(y, int | float):
        return None
    return (float(x), float(y)) if abs(x) < LARGEST and abs(y) < LARGEST else None  # which NaN is not


def unbroken(points: Iterable[Point | None]) -> list[list[Point]]:
    """The stretches of a curve without gaps."""
    found: list[list[Point]] = [[]]
    for point in points:
        if point is not None:
            found[-1].append(point)
        elif found[-1]:
            found.append([])
    return [part for part in found if part]


def round_numbers(low: float, high: float, most: int) -> list[float]:
    """At most `most` (2 or more) multiples of 1, 2 or 5 times a power of ten between two different numbers."""
    least = high / (most - 1) - low / (most - 1)
    if least < 1 / LARGEST:
        return [low, high]
    power = 10.0 ** math.floor(math.log10(least))
    step = next((power * factor for factor in (1, 2, 5, 10) if power * factor >= least), power * 10)
    first, last = math.ceil(low / step), math.floor(high / step)
    if low + step == low or last - first >= most:  # numbers are too coarse to be told apart
        return [low, high]
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)] or [low, high]
