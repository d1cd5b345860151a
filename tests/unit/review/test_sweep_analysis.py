"""Which parameters matter, in sweeps whose effects are known."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.review.sweeps.analysis import Importance, Point, as_number, axes_of, importance, spans_decades

GRID = {"optimizer.lr": ["1e-4", "3e-4", "1e-3"], "model.num_layers": ["2", "4", "8"], "runtime.seed": ["1", "2"]}


def grid(effect: Callable[[Mapping[str, str]], float]) -> list[Point]:
    settings = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    return [Point(each, effect(each)) for each in settings]


def shares(found: Importance) -> dict[str, float]:
    assert found.problem is None
    return {each.path: each.share for each in found.shares}


def test_main_effects_on_a_complete_grid_are_those_of_an_analysis_of_variance() -> None:
    # Variances over the levels: lr in {0, 1, 2}: 2/3; layers in {0, 2, 4}: 8/3; together 10/3.
    rates, layers = GRID["optimizer.lr"], GRID["model.num_layers"]
    found = importance(
        grid(lambda cell: rates.index(cell["optimizer.lr"]) + 2 * layers.index(cell["model.num_layers"]))
    )
    assert shares(found) == pytest.approx({"model.num_layers": 0.8, "optimizer.lr": 0.2, "runtime.seed": 0.0})
    assert found.shares[0].path == "model.num_layers"
    assert found.together == pytest.approx(0)
    assert found.unattributed == pytest.approx(0)
    assert found.shares[0].chance == pytest.approx(2 / 17)


def test_nothing_is_claimed_of_cells_that_differ_by_what_one_of_them_varies_by_itself() -> None:
    """The speeds of a busy machine, where each step of a cell takes another time."""
    rates = GRID["optimizer.lr"]
    points = grid(lambda cell: 1000.0 + 100 * rates.index(cell["optimizer.lr"]))
    noisy, quiet = ([replace(point, spread=spread) for point in points] for spread in (90.0, 9.0))
    assert importance(noisy).problem == "the cells differ no more than the steps within one cell"
    assert shares(importance(quiet))["optimizer.lr"] == pytest.approx(1)


def test_what_parameters_do_only_together_is_no_ones_share() -> None:
    parity = {"1e-4": 1, "3e-4": 0, "1e-3": -1}
    sign = {"1": 1, "2": -1}
    found = importance(grid(lambda cell: parity[cell["optimizer.lr"]] * sign[cell["runtime.seed"]]))
    assert max(shares(found).values()) == pytest.approx(0)
    assert found.together == pytest.approx(1)


def test_missing_cells_leave_the_order() -> None:
    whole = grid(lambda cell: 10 * float(cell["optimizer.lr"]) * 1000 + float(cell["model.num_layers"]) / 8)
    found = shares(importance([point for number, point in enumerate(whole) if number % 5]))
    assert found["optimizer.lr"] > 0.8
    assert found["model.num_layers"] < 0.05
    assert found["runtime.seed"] < 1e-6


def test_parameters_varied_side_by_side_cannot_be_told_apart() -> None:
    points = [Point({"a": str(level), "b": str(level)}, float(level)) for level in range(3) for _ in range(4)]
    found = importance(points)
    assert max(shares(found).values()) == pytest.approx(0)
    assert found.unattributed == pytest.approx(1)


def test_random_draws_are_put_into_parts() -> None:
    source = random.Random(1)
    points = []
    for _ in range(60):
        rate, noise = source.uniform(0, 1), source.uniform(0, 1)
        points.append(Point({"rate": f"{rate:.4g}", "noise": f"{noise:.4g}"}, (rate - 0.4) ** 2))
    found = importance(points)
    assert shares(found)["rate"] > 0.7
    assert shares(found)["noise"] < 0.1
    assert all(each.is_binned and each.levels == 4 for each in found.shares)


def test_a_parameter_that_does_nothing_gets_what_chance_gives() -> None:
    source = random.Random(7)
    got = []
    for _ in range(40):
        found = importance(grid(lambda cell: source.gauss(0, 1)))
        got.append(next(each for each in found.shares if each.path == "optimizer.lr"))
    assert sum(each.share for each in got) / 40 == pytest.approx(got[0].chance, abs=0.05)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([], "there are 0"),
        ([Point({"a": str(n)}, n) for n in range(3)], "there are 3"),
        ([Point({"a": "1"}, n) for n in range(9)], "no parameter"),
        ([Point({"a": str(n % 2)}, 1.0) for n in range(9)], "same value"),
        ([Point({"a": f"x{n}"}, n) for n in range(9)], "no parameter"),
        ([Point({name: str(n % 2) for name in "abcdefgh"}, n) for n in range(6)], "too few"),
    ],
)
def test_where_nothing_can_be_said_it_says_why(points: list[Point], words: str) -> None:
    found = importance(points)
    assert found.problem is not None
    assert words in found.problem
    assert found.shares == ()


def test_one_cell_that_makes_most_of_the_variance_is_named() -> None:
    points = grid(lambda cell: 1000.0 if cell == dict(zip(GRID, ("1e-3", "2", "1"), strict=True)) else 1.0)
    found = importance(points)
    assert found.dominating is not None
    assert points[found.dominating].value == 1000.0


cells = st.lists(
    st.builds(
        Point,
        st.fixed_dictionaries({"a": st.sampled_from("123"), "b": st.sampled_from("xyz"), "c": st.sampled_from("12")}),
        st.floats(-1e300, 1e300) | st.floats(-5, 5),
    ),
    max_size=30,
)


@given(points=cells, scale=st.sampled_from([1.0, 1000.0, -3.0]))
def test_shares_are_shares_whatever_the_unit_and_the_order(points: list[Point], scale: float) -> None:
    found = importance(points)
    if found.problem is not None:
        return
    assert all(0 <= each.share <= 1 + 1e-6 for each in found.shares)
    assert 0 <= found.together <= 1 + 1e-6
    assert 0 <= found.unattributed <= 1
    small = [Point(point.settings, point.value / 1e10) for point in points]
    other = importance([Point(point.settings, point.value * scale) for point in reversed(small)])
    if other.problem is None:
        assert shares(other) == pytest.approx(shares(found), abs=1e-3)


def test_values_of_an_axis_are_in_order() -> None:
    settings = [{"lr": "1e-3", "act": "gelu"}, {"lr": "3e-4", "act": "swiglu"}, {"lr": "1e-4", "fixed": "1"}]
    assert axes_of(settings) == {"lr": ["1e-4", "3e-4", "1e-3"], "act": ["gelu", "swiglu"]}
    assert as_number("nan") is None
    assert spans_decades([1e-5, 1e-3])
    assert not spans_decades([0.0, 1e9])
    assert not spans_decades([1, 2, 8])
