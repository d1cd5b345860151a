"""Curves as lines that need no script: where each point, tick and mark of a figure of plotly stands in an SVG."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

from orchestrator.dashboard.rendering import count
from orchestrator.review.charts.curves import Figure
from orchestrator.review.charts.geometry import Point, point_of, round_numbers, unbroken
from orchestrator.review.charts.marks import MEANT, SIGNS

WIDTH, HEIGHT = 560, 286
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 548, 12, 250
_COLOURS = 8
_SERIES = re.compile(r"series-([1-8])")
_MOST_TICKS = 6
_MOST_POINTS = 400


@dataclass(frozen=True)
class Line:
    """A curve: its parts between gaps as points of SVG. `colour` from 1 to 8; `style`: `area` is filled;
    `dash` as plotly calls it.
    """

    name: str
    colour: int
    parts: tuple[str, ...]
    style: str
    dash: str = "solid"


@dataclass(frozen=True)
class Drawing:
    """A chart. Ticks: (place, text); marks: (place, kind). Above each place with marks stand their signs, which the
    legend has in words.
    """

    title: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    marks: tuple[tuple[float, str], ...]

    @property
    def signs(self) -> dict[float, str]:
        """The signs at each place that has some."""
        found: dict[float, str] = {}
        for place, kind in self.marks:
            found[place] = found.get(place, "") + SIGNS.get(kind, "")
        return found

    @property
    def meanings(self) -> tuple[str, ...]:
        """Each sign that is there, with what it says."""
        kinds = {kind for _, kind in self.marks}
        return tuple(f"{sign} {MEANT[kind]}" for kind, sign in SIGNS.items() if kind in kinds)


def drawn(figure: Figure) -> Drawing:
    """A figure whose curves are over numbers."""
    traces = [trace for trace in figure["data"] if trace.get("meta") != "ticks"]
    curves = _stacked([_points(trace) for trace in traces], traces)
    every = [point for points in curves for point in points if point is not None]
    layout = figure["layout"]
    if not every:
        return Drawing(_title(layout, "title"), "", "", (), (), (), ())
    low_x, high_x = _span([x for x, _ in every])
    low_y, high_y = _span([0.0, *(y for _, y in every)] if _is_stacked(traces) else [y for _, y in every])

    def x_at(x: float) -> float:
        return round(_LEFT + (x - low_x) / (high_x - low_x) * (_RIGHT - _LEFT), 1)

    def y_at(y: float) -> float:
        return round(_BOTTOM - (y - low_y) / (high_y - low_y) * (_BOTTOM - _TOP), 1)

    lines, names = [], list(dict.fromkeys(name_of(trace) for trace in traces))
    for trace, points in reversed(list(zip(traces, curves, strict=True))):
        parts = unbroken([None if point is None else (x_at(point[0]), y_at(point[1])) for point in points])
        style = "area" if "stackgroup" in trace else "undone" if trace.get("meta") == "undone" else "line"
        if style == "area":
            parts = [[(part[0][0], y_at(0.0)), *part, (part[-1][0], y_at(0.0))] for part in parts]
        name = name_of(trace)
        written = tuple(" ".join(f"{x:g},{y:g}" for x, y in part) for part in parts)
        dash = str(trace.get("line", {}).get("dash", "solid"))
        lines.append(Line(name, _colour(trace, names.index(name)), written, style, dash))
    marks = [
        (x_at(float(shape["x0"])), str(shape.get("name", "")))
        for shape in layout.get("shapes", ())
        if shape.get("yref") == "paper" and isinstance(shape.get("x0"), int | float)
    ]
    across, upward = (round_numbers(*ends, _MOST_TICKS) for ends in ((low_x, high_x), (low_y, high_y)))
    return Drawing(
        title=_title(layout, "title"),
        x_title=_title(layout.get("xaxis", {}), "title"),
        y_title=_title(layout.get("yaxis", {}), "title"),
        lines=tuple(lines),
        x_ticks=tuple((x_at(tick), count(tick)) for tick in across),
        y_ticks=tuple((y_at(tick), _tick(tick, layout.get("yaxis", {}))) for tick in upward),
        marks=tuple((place, name) for place, name in marks if _LEFT <= place <= _RIGHT),
    )


def _colour(trace: dict[str, Any], number: int) -> int:
    """That of the figure; where it names none, a colour by the curve's number."""
    said = _SERIES.fullmatch(str(trace.get("line", {}).get("color", "")))
    return int(said[1]) if said else number % _COLOURS + 1


def name_of(trace: dict[str, Any]) -> str:
    """What a curve is called: plotly has it with its `<` and `&` written as HTML does."""
    return unescape(str(trace.get("name", "")))


def _points(trace: dict[str, Any]) -> list[Point | None]:
    """The points of a curve, None for a gap; of many so many as can be told apart."""
    found = [point_of(x, y) for x, y in zip(trace["x"], trace["y"], strict=True)]
    if len(found) <= _MOST_POINTS:
        return found
    kept = {0, len(found) - 1}
    each = len(found) * 2 / _MOST_POINTS
    for number in range(_MOST_POINTS // 2):
        places = range(int(number * each), min(len(found), int((number + 1) * each)))
        points = [(point[1], place) for place in places if (point := found[place]) is not None]
        kept.update({min(points)[1], max(points)[1]} if points else places[:1])
    return [found[place] for place in sorted(kept)]


def _is_stacked(traces: Sequence[dict[str, Any]]) -> bool:
    return any("stackgroup" in trace for trace in traces)


def _stacked(curves: list[list[Point | None]], traces: Sequence[dict[str, Any]]) -> list[list[Point | None]]:
    """Of curves that stand one above the other, their upper edges; others as they are."""
    if not _is_stacked(traces):
        return curves
    below: dict[float, float] = {}
    found: list[list[Point | None]] = []
    for points in curves:
        raised = [(x, below.get(x, 0.0) + y) for x, y in (point for point in points if point is not None)]
        below = dict(raised)
        found.append(list(raised))
    return found


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high - low > 1e-9 * max(abs(low), abs(high), 1e-290):
        return low, high
    pad = abs(low) * 0.1 or 1.0
    return low - pad, high + pad


def _tick(value: float, axis: dict[str, Any]) -> str:
    if str(axis.get("tickformat", "")).endswith("%"):
        return f"{100 * value:.4g}%"
    return count(value) if abs(value) >= 1e4 else f"{value:.4g}"


def _title(record: dict[str, Any], key: str) -> str:
    return str((record.get(key) or {}).get("text", ""))
