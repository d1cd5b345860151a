"""A speed as it is told of a run: the median of its latest steps. The last one alone says much of the moment, on a busy
machine mostly that, and the first ones of a start are slow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

STEPS = 100
"""So many of the latest measured steps count."""
SPEEDS = "throughput/"
"""Keys that begin so are speeds."""
_SIGMAS_BETWEEN_QUARTILES = 1.349
_FEWEST_WITH_QUARTILES = 4


def usual(values: Sequence[float]) -> float | None:
    """The median of the latest finite values; None where there is none."""
    finite = _finite(values)
    return statistics.median(finite) if finite else None


def spread(values: Sequence[float]) -> float | None:
    """How far the latest values lie from each other: what a standard deviation would be without their outliers. None
    for fewer than four.
    """
    finite = _finite(values)
    if len(finite) < _FEWEST_WITH_QUARTILES:
        return None
    first, _, third = statistics.quantiles(finite, n=4, method="inclusive")
    return (third - first) / _SIGMAS_BETWEEN_QUARTILES


def speeds_of(records: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, list[float]]:
    """The values of each speed, of (iteration, values) as they were written; without what a resume has undone."""
    found: dict[str, list[tuple[int, float]]] = {}
    for iteration, values in records:
        for key, value in values.items():
            if key.startswith(SPEEDS):
                kept = found.setdefault(key, [])
                while kept and kept[-1][0] >= iteration:
                    kept.pop()
                kept.append((iteration, value))
    return {key: [value for _, value in kept] for key, kept in found.items()}


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values[-STEPS:] if math.isfinite(value)]
