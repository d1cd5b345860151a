"""Measured steps correct the parts that they are made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.tuning.correction import Correction

SECONDS = st.floats(0.01, 10.0)
PARTS = st.fixed_dictionaries({"gemm": SECONDS, "bubble": SECONDS, "optimizer": SECONDS})


def test_nothing_measured_corrects_nothing() -> None:
    assert Correction.by([]).seconds({"gemm": 2.0, "bubble": 1.0}) == 3.0


@given(measured=st.lists(PARTS, min_size=1, max_size=5), other=PARTS, scale=st.floats(0.2, 5.0))
def test_one_factor_for_all_is_found(measured: list[dict[str, float]], other: dict[str, float], scale: float) -> None:
    correction = Correction.by([(parts, scale * sum(parts.values())) for parts in measured])
    assert correction.seconds(other) == pytest.approx(scale * sum(other.values()))


def test_the_part_that_is_off_is_found() -> None:
    """The bubble takes half as long again as estimated: layouts with much of it are corrected, others are not."""
    true = {"gemm": 1.0, "bubble": 1.5, "optimizer": 1.0}
    measured = [
        {"gemm": 10.0, "bubble": 0.0, "optimizer": 0.5},
        {"gemm": 9.0, "bubble": 4.0, "optimizer": 0.2},
        {"gemm": 9.5, "bubble": 1.0, "optimizer": 1.0},
    ]
    correction = Correction.by([(parts, _sum(parts, true)) for parts in measured])
    for other in ({"gemm": 9.0, "bubble": 3.0, "optimizer": 0.3}, {"gemm": 11.0, "bubble": 0.1, "optimizer": 0.3}):
        assert correction.seconds(other) == pytest.approx(_sum(other, true), rel=0.03)


@given(measured=st.lists(st.tuples(PARTS, SECONDS), min_size=1, max_size=6), other=PARTS)
def test_time_is_never_negative(measured: list[tuple[dict[str, float], float]], other: dict[str, float]) -> None:
    assert Correction.by(measured).seconds(other) > 0


def _sum(parts: dict[str, float], factors: dict[str, float]) -> float:
    return sum(factors[name] * seconds for name, seconds in parts.items())
