"""Means and what is made of them, with standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.run_directory.results.record import Measure

# exp of a larger number has no finite float.
_LARGEST_EXPONENT = 700.0


def mean(values: Sequence[float]) -> Measure:
    """The mean of independent values and its standard error, s / √n with Bessel's correction; none for one value."""
    count = len(values)
    average = math.fsum(values) / count
    if count < 2:
        return Measure(average)
    squares = math.fsum((value - average) ** 2 for value in values)
    return Measure(average, math.sqrt(squares / (count - 1) / count))


def ratio(sums: Sequence[float], counts: Sequence[int]) -> Measure:
    """Σ sums / Σ counts over groups that count as independent (the windows of a text, not its tokens), with the
    linearised standard error of a ratio (Cochran, Sampling Techniques, chapter 6).
    """
    groups, total = len(sums), sum(counts)
    average = math.fsum(sums) / total
    if groups < 2:
        return Measure(average)
    squares = math.fsum((part - average * count) ** 2 for part, count in zip(sums, counts, strict=True))
    return Measure(average, math.sqrt(squares * groups / (groups - 1)) / total)


def scaled(measure: Measure, factor: float) -> Measure:
    """The measure times a number."""
    return Measure(measure.value * factor, None if measure.stderr is None else measure.stderr * abs(factor))


def exponential(measure: Measure) -> Measure:
    """e to the measure, with the standard error to first order; as large as a float can be where it is larger."""
    value = math.exp(min(measure.value, _LARGEST_EXPONENT))
    return Measure(value, None if measure.stderr is None else value * measure.stderr)
