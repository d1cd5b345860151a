"""Curves as plotly draws them: a figure is a JSON object of `data` and `layout`; the page gives its colours."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.fields.formatting import shorten
from orchestrator.review.charts.axes import XAxis, plain, x_of, x_title, zone_of
from orchestrator.review.charts.catalogue import Chart
from orchestrator.review.charts.marks import TICK_AXIS, drawn_marks
from orchestrator.review.charts.series import Column, Series, share_points, smoothed, thinned
from orchestrator.review.charts.timeline import Mark

Figure = dict[str, Any]
Range = tuple[float | None, float | None]
Points = dict[str, list[Any]]

_MOST_POINTS = 1500
_MOST_EXPONENT = 700.0
_COLOURS = 8
_LONGEST_KEY = 120
_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class View:
    """How curves are looked at. `smoothing`: 0 for the values themselves; `log`: of the y axis; `perplexity`: the
    exponential of losses; `within`: a part of the x axis; `since`: what was measured from this step on.
    """

    x: XAxis = "steps"
    smoothing: float = 0.0
    log: bool = False
    perplexity: bool = False
    within: Range = (None, None)
    since: int | None = None


@dataclass(frozen=True)
class Reference:
    """A number that a curve is held against, as a line over the whole width, in the metric's own unit."""

    text: str
    value: float


def figure_of(
    chart: Chart,
    runs: Mapping[str, Series],
    view: View = View(),
    *,
    marks: Sequence[Mark] = (),
    references: Sequence[Reference] = (),
) -> Figure:
    """The curves of one chart of one or several runs (their names by the keys of `runs`), thinned out to 1,500 points
    each with their extremes kept; of a part of the x axis, for as many points there. `marks` and `references` are those
    of the only run. Of several runs each has the same colour in every chart.
    """
    alone = len(runs) == 1
    drawn = {name: curves_of(chart, series, view, undone=alone) for name, series in runs.items()}
    ticks, lines, notes = drawn_marks(marks, next(iter(runs.values())), view.x) if alone else ([], [], [])
    figure = figure_of_curves(chart, drawn, view, beside=len(json.dumps([ticks, lines, notes])))
    if alone and figure["data"]:
        figure["data"] += ticks
        held = [_held_against(each, chart, view.log) for each in references if math.isfinite(each.value)]
        figure["layout"] |= {
            "shapes": [*lines, *(line for line, _ in held)],
            "annotations": [*notes, *(note for _, note in held)],
            **({"yaxis2": TICK_AXIS} if ticks else {}),
        }
    return figure


@dataclass(frozen=True)
class Curve:
    """A key of a run as it is drawn, thinned out: `x` and `y`. `smooth`: the same smoothed; `undone`: steps that a
    resume has undone; None where these were not asked for, or are none.
    """

    key: str
    points: Points
    smooth: Points | None = None
    undone: Points | None = None

    @property
    def size(self) -> int:
        """How many points it has."""
        return sum(len(points["x"]) for points in (self.points, self.smooth, self.undone) if points is not None)


def curves_of(chart: Chart, series: Series, view: View, *, undone: bool = False) -> tuple[Curve, ...]:
    """The curves of one run in a chart, apart from the measurements that they were made of."""
    if view.x == "flops" and series.flops_per_token is None:
        return ()
    way = _CurveOptions(view, chart.scale, view.perplexity and chart.name == "loss")
    return tuple(way.curve(key, series, with_undone=undone) for key in keys_of(chart, series))


def figure_of_curves(chart: Chart, runs: Mapping[str, Sequence[Curve]], view: View, *, beside: int = 0) -> Figure:
    """The figure of curves that `curves_of` made of each run in the same view. `beside`: the bytes of what is added."""
    data: list[dict[str, Any]] = []
    for number, (name, curves) in enumerate(runs.items()):
        for place, curve in enumerate(curves):
            key = shorten(curve.key, _LONGEST_KEY)
            label = plain(key if len(runs) == 1 else f"{name} {key}" if len(curves) > 1 else name)
            data += _traces(curve, label, line_of(place) if len(runs) == 1 else line_of(number, place))
    share_points(data, beside)
    layout: dict[str, Any] = {
        "title": {"text": plain("Perplexity" if view.perplexity and chart.name == "loss" else chart.title)},
        "showlegend": sum(trace.get("showlegend", True) for trace in data) > (len(runs) == 1),
        "xaxis": {"title": {"text": x_title(view.x)}, **({"type": "date"} if view.x == "clock" else {})},
        "yaxis": {
            "title": {"text": chart.unit},
            "type": "log" if view.log else "linear",
            **({"tickformat": chart.ticks} if chart.ticks else {}),
        },
    }
    return {"data": data, "layout": layout}


def _traces(curve: Curve, label: str, line: Mapping[str, str]) -> list[dict[str, Any]]:
    """As plotly has them; where a curve is smoothed, the plain one stands behind it."""
    whole: dict[str, Any] = {
        "type": "scatter",
        "mode": mode_of(curve.points["y"]),
        "name": label,
        "line": line,
        "marker": {"color": line["color"]},
        **curve.points,
    }
    traces = [whole]
    if curve.smooth is not None:
        behind = {**whole, "opacity": 0.25, "showlegend": False, "hoverinfo": "skip", "legendgroup": label}
        traces = [behind, {**whole, **curve.smooth, "legendgroup": label}]
    if curve.undone is not None:
        mode = mode_of(curve.undone["y"])
        drawn = {"type": "scatter", "mode": mode, "name": f"{label} (undone)", "meta": "undone", "opacity": 0.45}
        dotted = {**line, "dash": "dot", "width": 1}
        traces.append({**drawn, "line": dotted, "marker": {"color": line["color"]}, **curve.undone})
    return traces


def mode_of(values: Sequence[float | None]) -> str:
    """How plotly draws a curve: with its points where one has no neighbour that a line could lead to."""
    gaps = [True, *(value is None for value in values), True]
    if not any(gaps[place - 1] and gaps[place + 1] and not gaps[place] for place in range(1, len(gaps) - 1)):
        return "lines"
    return "lines+markers" if len(values) > 1 else "markers"


def keys_of(chart: Chart, series: Series) -> list[str]:
    """The keys of a chart that a run has measured."""
    named = [key for key in chart.keys if key in series.columns]
    return named + sorted(key for key in series.columns if key not in named and chart.has(key))


def line_of(number: int, place: int = 0) -> dict[str, str]:
    """How a curve is drawn: the colour of its number, by its name on the page; with more numbers than colours in
    dashes, and so are those after the first `place` of a number.
    """
    return {"color": f"series-{number % _COLOURS + 1}", "dash": _DASHES[(number // _COLOURS + place) % len(_DASHES)]}


@dataclass(frozen=True)
class _CurveOptions:
    """How a curve is drawn."""

    view: View
    scale: float
    perplexity: bool

    def curve(self, key: str, series: Series, *, with_undone: bool) -> Curve:
        column = series.columns[key]
        counting = series.counting(column)
        points = self._points(series, counting.iterations, counting.values)
        smooth = None
        if self.view.smoothing != 0:
            smooth = self._points(series, counting.iterations, smoothed(counting.values, self.view.smoothing))
        return Curve(key, points, smooth, self._undone(series, column) if with_undone else None)

    def _undone(self, series: Series, column: Column) -> Points | None:
        """Steps that a resume from an earlier checkpoint has undone, on the axes where they keep their place."""
        if self.view.x not in ("steps", "tokens", "flops"):
            return None
        count = series.still_counting(column)
        iterations = [*column.undone_iterations, *column.iterations[count:]]
        values = [*column.undone_values, *column.values[count:]]
        if not values:
            return None
        points = self._points(series, iterations, values)
        # Each course that was given up is a line of its own.
        for place in range(len(points["x"]) - 1, 0, -1):
            if points["x"][place] <= points["x"][place - 1]:
                points["x"].insert(place, points["x"][place])
                points["y"].insert(place, None)
        return points

    def _points(self, series: Series, iterations: Sequence[int], values: Sequence[float]) -> Points:
        first, last = self._steps(series)
        if self.view.since is not None:
            begin = bisect_left(iterations, self.view.since)
            iterations, values = iterations[begin:], values[begin:]
        if first is not None or last is not None:
            kept = _seen(iterations, first, last)
            iterations, values = [iterations[each] for each in kept], [values[each] for each in kept]
        places = thinned(values, _MOST_POINTS)
        return {
            "x": [x_of(series, iterations[place], self.view.x) for place in places],
            "y": [self._y(values[place]) for place in places],
        }

    def _y(self, value: float) -> float | None:
        if self.perplexity:
            value = math.exp(value) if value < _MOST_EXPONENT else math.inf
        return value / self.scale if math.isfinite(value) else None

    def _steps(self, series: Series) -> tuple[int | None, int | None]:
        """The first and the last step of the part that is asked for."""
        low, high = self.view.within
        if (low is None and high is None) or not series.iterations:
            return None, None
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        if self.view.x == "steps":
            inside = [iteration for iteration in series.iterations if low <= iteration <= high]
        elif self.view.x in ("tokens", "flops"):
            each = 1.0 if self.view.x == "tokens" else series.flops_per_token or 0.0
            inside = [series.iterations[place] for place, at in enumerate(series.tokens) if low <= at * each <= high]
        else:
            first = series.times[0]
            offset = zone_of(series).tm_gmtoff
            if self.view.x == "time":
                begin, end = first + low * 3600, first + high * 3600
            else:
                begin, end = low / 1000 - offset, high / 1000 - offset
            inside = [series.iterations[place] for place, at in enumerate(series.times) if begin <= at <= end]
        return (min(inside), max(inside)) if inside else (None, None)


def _seen(iterations: Sequence[int], first: int | None, last: int | None) -> range | list[int]:
    """The places from the first to the last step, and one more at each end: a line goes on to the edge."""
    inside = [
        place
        for place, iteration in enumerate(iterations)
        if (first is None or iteration >= first) and (last is None or iteration <= last)
    ]
    if not inside:
        return []
    return range(max(inside[0] - 1, 0), min(inside[-1] + 2, len(iterations)))


def _held_against(reference: Reference, chart: Chart, log: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """A line at a number, and its name at the right end."""
    value = reference.value / chart.scale
    line = {"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": value, "y1": value, "name": "plan"}
    note = {
        "xref": "paper",
        "yref": "y",
        "x": 1,
        "y": math.log10(value) if log and value > 0 else value,
        "text": plain(reference.text),
        "showarrow": False,
        "xanchor": "right",
        "yanchor": "bottom",
    }
    return line, note
