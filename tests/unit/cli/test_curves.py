"""Curves in a terminal."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples

from orchestrator.cli.runs.curves import Curve, draw

numbers = st.floats(allow_nan=True, allow_infinity=True) | st.floats(-10, 10)
points = st.lists(st.tuples(numbers, numbers), max_size=30)


@settings(max_examples=examples(60), deadline=None)
@given(first=points, second=points, width=st.integers(1, 120), height=st.integers(1, 40), colour=st.booleans())
def test_any_curves_are_drawn_within_their_frame(
    first: list[tuple[float, float]], second: list[tuple[float, float]], width: int, height: int, colour: bool
) -> None:
    curves = [
        Curve(letter, [x for x, _ in each], [y for _, y in each]) for letter, each in (("A", first), ("B", second))
    ]
    text = draw(curves, title="loss", x_title="step", width=width, height=height, colour=colour, ascii_only=True)
    if not colour:
        assert max(len(line) for line in text.splitlines()) <= max(width, 30)
        assert len(text.splitlines()) <= max(height, 8)
        assert text.isascii()
        assert "\x1b" not in text


def test_curves_can_be_told_apart_without_colours() -> None:
    falling = Curve("A", range(10), [10.0 - step for step in range(10)])
    rising = Curve("B", range(10), [float(step) for step in range(10)])
    text = draw([falling, rising], title="", x_title="", width=60, height=16, colour=False, ascii_only=False)
    lines = [line.split("│")[-2] if line.count("│") > 1 else line for line in text.splitlines()]
    both = [line for line in lines if "A" in line and "B" in line]
    assert both[0].index("A") < both[0].index("B")
    assert both[-1].index("B") < both[-1].index("A")


def test_a_gap_is_left_where_a_value_is_no_number() -> None:
    curve = Curve("A", range(5), [1.0, 1.0, math.nan, 1.0, 1.0])
    text = draw([curve], title="", x_title="step", width=60, height=8, colour=False, ascii_only=False)
    [line] = [line for line in text.splitlines() if "AA" in line]
    assert " " * 10 in line.strip("│ ").replace("1┤", "")


def test_nothing_to_draw_is_said() -> None:
    nothing = Curve("A", [1.0], [math.nan])
    assert "nothing" in draw([nothing], title="x", x_title="", width=9, height=9, colour=True, ascii_only=False)
