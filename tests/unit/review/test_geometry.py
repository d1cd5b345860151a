"""Numbers along an axis."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.review.charts.geometry import round_numbers


@given(low=st.floats(-1e99, 1e99), high=st.floats(-1e99, 1e99), most=st.integers(2, 20))
def test_ticks_lie_between_the_ends(low: float, high: float, most: int) -> None:
    low, high = sorted((low, high))
    if math.isclose(low, high, rel_tol=1e-12, abs_tol=1e-100):
        return
    found = round_numbers(low, high, most)
    assert 1 <= len(found) <= most
    slack = 1e-9 * (high - low)
    assert all(low - slack <= tick <= high + slack for tick in found)
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [(0.0, 10.0, 6, [0, 2, 4, 6, 8, 10]), (1, 199, 5, [50, 100, 150]), (2.1, 2.5, 3, [2.2, 2.4])],
)
def test_ticks_are_round(low: float, high: float, most: int, expected: list[float]) -> None:
    assert round_numbers(low, high, most) == expected
