"""Standard errors."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from orchestrator.evaluation.statistics import exponential, mean, ratio, scaled
from orchestrator.run_directory.results.record import Measure


def test_the_mean_and_its_error() -> None:
    values = [0.0, 1.0, 1.0, 1.0, 0.0, 2.5]
    found = mean(values)
    assert found.value == pytest.approx(statistics.fmean(values))
    assert found.stderr == pytest.approx(statistics.stdev(values) / math.sqrt(6))
    assert mean([3.0]) == Measure(3.0, None)


def test_a_ratio_of_equal_groups_is_a_mean() -> None:
    values = [2.0, 3.0, 7.0, 4.0]
    found = ratio([4 * value for value in values], [4] * 4)
    assert found.value == pytest.approx(mean(values).value)
    assert found.stderr == pytest.approx(mean(values).stderr)


def test_the_error_of_a_ratio_is_how_far_it_strays() -> None:
    """Of many texts drawn alike, each with windows of unequal length."""
    draw = random.Random(7)

    def text() -> Measure:
        counts = [draw.randint(20, 40) for _ in range(50)]
        return ratio([count * draw.gauss(3.0, 0.5) for count in counts], counts)

    found = [text() for _ in range(400)]
    strays = statistics.stdev(measure.value for measure in found)
    said = statistics.fmean(measure.stderr or 0.0 for measure in found)
    assert said == pytest.approx(strays, rel=0.1)


def test_exponentials_carry_the_error_on_and_stay_finite() -> None:
    assert exponential(Measure(2.0, 0.01)) == Measure(math.exp(2.0), math.exp(2.0) * 0.01)
    assert math.isfinite(exponential(Measure(1e6, None)).value)
    assert scaled(Measure(2.0, 0.5), -3.0) == Measure(-6.0, 1.5)
