"""Which parameters of a sweep matter: the share of the differences between its cells that each explains.

An additive model is fitted to the cells: a mean, and for each parameter an effect of each of its values. What the model
explains less without a parameter, as a share of the variance, is the parameter's own share. On a complete grid these
are the main effects of a functional analysis of variance, and what remains is how parameters act together, and chance.
Where cells are missing, or parameters were varied side by side, something is left that cannot be attributed to one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LEAST_CELLS = 4
_MOST_BINS = 4
_MOST_PASSES = 200
_STILL = 1e-10
_DOMINATES = 0.5


@dataclass(frozen=True)
class Point:
    """A cell that has a value: its settings by path, as text, and a finite value. `spread`: how far it varies from step
    to step while the settings are the same, as a standard deviation; None where that is not known.
    """

    settings: Mapping[str, str]
    value: float
    spread: float | None = None


@dataclass(frozen=True)
class Share:
    """A parameter. `share`: of the variance, from 0 to 1. `chance`: what a parameter of as many levels that does
    nothing would get on average. `levels`: its values, or the parts of equal size that many numbers were put into.
    """

    path: str
    share: float
    chance: float
    levels: int
    is_binned: bool


@dataclass(frozen=True)
class Importance:
    """What matters, the most important first. `together`: the share that no parameter explains alone (how they act
    together, and chance). `unattributed`: what several explain and cannot be told apart. `dominating`: the place of
    the only point that makes more than half of the variance. `problem`: why nothing can be said.
    """

    points: int
    shares: tuple[Share, ...] = ()
    together: float = 0.0
    unattributed: float = 0.0
    dominating: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class _Axis:
    path: str
    places: tuple[int, ...]
    """The level of each point."""
    levels: int
    is_binned: bool


def importance(points: Sequence[Point]) -> Importance:
    """What matters among points whose values are finite."""
    count = len(points)
    if count < _LEAST_CELLS:
        return Importance(count, problem=f"it takes {_LEAST_CELLS} cells with a value, but there are {count}")
    axes = [axis for path in axes_of([point.settings for point in points]) if (axis := _axis(path, points))]
    if not axes:
        return Importance(count, problem="no parameter has several values among the cells with a result")
    if sum(axis.levels - 1 for axis in axes) + 1 >= count:
        return Importance(count, problem=f"{count} cells are too few for so many parameters and values")
    largest = max(abs(point.value) for point in points)
    scaled = [point.value / largest for point in points] if largest > 0 else [0.0] * count
    mean = math.fsum(scaled) / count
    centred = [value - mean for value in scaled]
    total = math.fsum(value * value for value in centred)
    if total <= 1e-24 * count:
        return Importance(count, problem="all cells have the same value")
    if _is_noise(math.sqrt(total / count) * largest, points):
        return Importance(count, problem="the cells differ no more than the steps within one cell")
    rest = _unexplained(centred, axes)
    shares = [
        Share(
            axis.path,
            max(0.0, _unexplained(centred, [other for other in axes if other is not axis]) - rest) / total,
            (axis.levels - 1) / (count - 1),
            axis.levels,
            axis.is_binned,
        )
        for axis in axes
    ]
    alone = math.fsum(each.share for each in shares)
    farthest = max(range(count), key=lambda place: abs(centred[place]))
    return Importance(
        count,
        tuple(sorted(shares, key=lambda each: -each.share)),
        together=rest / total,
        unattributed=max(0.0, 1 - alone - rest / total),
        dominating=farthest if centred[farthest] ** 2 > _DOMINATES * total else None,
    )


def _is_noise(deviation: float, points: Sequence[Point]) -> bool:
    """Whether the values of points differ by what one of them varies by itself. `deviation`: of their values."""
    spreads = [point.spread for point in points if point.spread is not None]
    return bool(spreads) and deviation <= statistics.median(spreads)


def axes_of(settings: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The parameters that have several values, with their values: numbers by size, anything else as they come."""
    paths = dict.fromkeys(path for each in settings for path in each)
    found = {path: list(dict.fromkeys(each[path] for each in settings if path in each)) for path in paths}
    return {path: _in_order(values) for path, values in found.items() if len(values) > 1}


def as_number(text: str) -> float | None:
    """The number that a value is, if it is one that is finite."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def spans_decades(numbers: Sequence[float]) -> bool:
    """Whether a logarithmic axis shows positive numbers better."""
    return bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= 10


def _in_order(values: list[str]) -> list[str]:
    numbers = [as_number(value) for value in values]
    if any(number is None for number in numbers):
        return values
    return sorted(values, key=float)


def _axis(path: str, points: Sequence[Point]) -> _Axis | None:
    """The level of each point on an axis; many different numbers are put into parts of equal size. None for an axis of
    which nothing repeats and that has no order.
    """
    texts = [point.settings.get(path, "") for point in points]
    values = list(dict.fromkeys(texts))
    if len(values) * 2 <= len(points):
        return _Axis(path, tuple(values.index(text) for text in texts), len(values), False)
    numbers = [as_number(text) for text in texts]
    known = sorted({number for number in numbers if number is not None})
    if None in numbers or len(known) < 2:
        return None
    bins = max(2, min(_MOST_BINS, len(points) // 5, len(known)))
    rank = {number: place * bins // len(known) for place, number in enumerate(known)}
    return _Axis(path, tuple(rank[number] for number in numbers if number is not None), bins, True)


def _unexplained(centred: Sequence[float], axes: Sequence[_Axis]) -> float:
    """The sum of squares that the additive model of these axes leaves: the means of each level of each axis are taken
    out in turn until nothing changes, which is least squares.
    """
    rest = list(centred)
    left = math.fsum(value * value for value in rest)
    for _ in range(_MOST_PASSES if axes else 0):
        before = left
        for axis in axes:
            sums, counts = [0.0] * axis.levels, [0] * axis.levels
            for value, level in zip(rest, axis.places, strict=True):
                sums[level] += value
                counts[level] += 1
            means = [total / count if count else 0.0 for total, count in zip(sums, counts, strict=True)]
            rest = [value - means[level] for value, level in zip(rest, axis.places, strict=True)]
        left = math.fsum(value * value for value in rest)
        if before - left <= _STILL * before:
            break
    return left
