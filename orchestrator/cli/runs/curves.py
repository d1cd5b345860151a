"""Curves as text. The only module that knows plotext."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotext

from orchestrator.quantities import short_count
from orchestrator.review.charts.geometry import LARGEST, point_of, round_numbers, unbroken

_COLOURS = (33, 166, 34, 127, 37, 160, 136, 244)
"""Of the 256 of a terminal: such as can be read on a light ground and on a dark one."""
_LEAST_WIDTH, _LEAST_HEIGHT = 30, 8
_COLUMNS_PER_TICK, _ROWS_PER_TICK = 16, 3
_PLAIN = str.maketrans("─│┌┐└┘├┤┬┴┼", "-|" + 9 * "+")


@dataclass(frozen=True)
class Curve:
    """A curve and the letter that names it. `y` may hold values that are not finite: gaps."""

    letter: str
    x: Sequence[float]
    y: Sequence[float]


def draw(
    curves: Sequence[Curve], *, title: str, x_title: str, width: int, height: int, colour: bool, ascii_only: bool
) -> str:
    """The curves in one frame of `width` columns and `height` rows. With colours they are lines, each with its letter
    at its end; without, each is drawn in its letters. Without any finite value: a sentence.
    """
    drawn = [(curve, parts) for curve in curves if (parts := unbroken(map(point_of, curve.x, curve.y)))]
    if not drawn:
        return f"{title}: nothing to draw"
    figure = plotext.figure
    plotext.terminal.limit(False, False)
    figure.clear()
    figure.theme("colorless")
    figure.canvas("default")
    figure.plot_size(max(_LEAST_WIDTH, width), max(_LEAST_HEIGHT, height))
    figure.title(title)
    figure.label(x_title, "x")
    for number, (curve, parts) in enumerate(drawn):
        pixel = _COLOURS[number % len(_COLOURS)] if colour else None
        marker = plotext.marker("braille" if colour and not ascii_only else curve.letter, pixel=pixel)
        for points in parts:
            figure.draw(figure.signal([x for x, _ in points], [y for _, y in points], marker=marker).lines(True))
    if colour:
        for number, (curve, parts) in enumerate(drawn):
            letter = plotext.colorize(curve.letter, pixel=_COLOURS[number % len(_COLOURS)])
            figure.draw(figure.text(*parts[-1][-1], letter, alignment="right"))
    every = [point for _, parts in drawn for points in parts for point in points]
    _mark_axis("x", [x for x, _ in every], width // _COLUMNS_PER_TICK)
    _mark_axis("y", [y for _, y in every], height // _ROWS_PER_TICK)
    text = str(figure.build().string(colorless=not colour))
    return "\n".join(line.rstrip() for line in (text.translate(_PLAIN) if ascii_only else text).splitlines())


def letter_in_colour(letter: str, number: int) -> str:
    """The letter of the curve of that number, as it stands in the drawing."""
    return str(plotext.colorize(letter, pixel=_COLOURS[number % len(_COLOURS)]).string())


def _mark_axis(axis: str, values: Sequence[float], most: int) -> None:
    """Round numbers along an axis; where all values are one, that one, in the middle."""
    low, high = min(values), max(values)
    ticks = round_numbers(low, high, max(2, most)) if high > low else [low]
    if high > low and not math.isclose(high, low, rel_tol=1e-12, abs_tol=1 / LARGEST):
        plotext.figure.ruler(axis).lim(low, high)
    texts = [short_count(tick) if axis == "x" else f"{tick:.6g}" for tick in ticks]
    plotext.figure.ruler(axis).ticks(ticks, texts)
