"""Curves as plotly draws them: a figure is a JSON object of `data` and `layout`; the page gives its colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.review.series import Column, Series, smoothed, thinned
from orchestrator.review.timeline import Mark

XAxis = Literal["steps", "tokens", "time", "clock"]
Figure = dict[str, Any]

_MOST_POINTS = 1500
_COLOURS = 8
_DASHES = ("solid", "dash", "dot", "dashdot")
X_TITLES = {"steps": "step", "tokens": "tokens", "time": "hours since the first step", "clock": "time"}
"""What the values of an axis are."""
_SHOWN_MARKS = ("resumed", "failure", "stop")


@dataclass(frozen=True)
class Chart:
    """A chart of some keys of the metric log. `also`: keys that begin so belong to it too."""

    name: str
    title: str
    keys: tuple[str, ...]
    unit: str = ""
    also: tuple[str, ...] = ()


CHARTS = {
    chart.name: chart
    for chart in (
        Chart("loss", "Loss", ("train/loss", "validation/loss"), also=("train/loss/", "validation/")),
        Chart("grad_norm", "Gradient norm", ("train/grad_norm",)),
        Chart("lr", "Learning rate", ("train/lr",)),
        Chart("speed", "Tokens per second", ("throughput/tokens_per_second",), "tokens/s"),
        Chart("mfu", "MFU", ("throughput/mfu",)),
        Chart("memory", "Peak memory", ("memory/peak_bytes",), "bytes"),
    )
}
"""The charts of a run, by name, in the order of the page."""


def figure_of(
    chart: Chart,
    runs: Mapping[str, Series],
    *,
    x: XAxis = "steps",
    smoothing: float = 0.0,
    log: bool = False,
    marks: Sequence[Mark] = (),
) -> Figure:
    """The curves of one chart of one or several runs (their names by the keys of `runs`), thinned out to 1,500 points
    each with their extremes kept. `marks` are those of the only run. A run has the same colour in every chart, where
    each has one curve of it.
    """
    data: list[dict[str, Any]] = []
    number = 0
    for name, series in runs.items():
        keys = keys_of(chart, series)
        for place, key in enumerate(keys):
            label = key if len(runs) == 1 else f"{name} {key}" if len(keys) > 1 else name
            data += _curve(label, series, series.columns[key], x, smoothing, line_of(number + place))
        number += max(1, len(keys))
    layout: dict[str, Any] = {
        "title": {"text": chart.title},
        "xaxis": {"title": {"text": X_TITLES[x]}, **({"type": "date"} if x == "clock" else {})},
        "yaxis": {"title": {"text": chart.unit}, "type": "log" if log else "linear"},
    }
    if len(runs) == 1:
        layout |= _marked(marks, next(iter(runs.values())), x)
    return {"data": data, "layout": layout}


def keys_of(chart: Chart, series: Series) -> list[str]:
    """The keys of a chart that a run has measured."""
    named = [key for key in chart.keys if key in series.columns]
    others = [
        key
        for key in series.columns
        if key not in named and key.startswith(chart.also) and (key.endswith("/loss") or key.startswith("train/loss/"))
    ]
    return named + sorted(others) if chart.also else named


def line_of(number: int) -> dict[str, str]:
    """How the curve of that number is drawn: a colour of the page, by its name there, and with more curves than
    colours in dashes.
    """
    return {"color": f"series-{number % _COLOURS + 1}", "dash": _DASHES[number // _COLOURS % len(_DASHES)]}


def _curve(
    label: str, series: Series, column: Column, x: XAxis, smoothing: float, line: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The curve; where it is smoothed, the plain one stands behind it."""
    plain = {
        "type": "scatter",
        "mode": "lines" if len(column.values) > 1 else "markers",
        "name": label,
        "line": line,
        "marker": {"color": line["color"]},
        **_points(series, column, column.values, x),
    }
    if smoothing == 0:
        return [plain]
    smooth = {
        **plain,
        **_points(series, column, smoothed(column.values, smoothing), x),
        "legendgroup": label,
    }
    behind = {**plain, "opacity": 0.25, "showlegend": False, "hoverinfo": "skip", "legendgroup": label}
    return [behind, smooth]


def _points(series: Series, column: Column, values: Sequence[float], x: XAxis) -> dict[str, list[Any]]:
    places = thinned(values, _MOST_POINTS)
    return {
        "x": [x_of(series, column.iterations[place], x) for place in places],
        "y": [values[place] if math.isfinite(values[place]) else None for place in places],
    }


def x_of(series: Series, iteration: int, x: XAxis) -> float | int | str:
    """Where an iteration stands on an axis. `time`: hours since the first step; `clock`: milliseconds of the epoch,
    as plotly has dates.
    """
    if x == "steps":
        return iteration
    place = series.at(iteration)
    if x == "tokens":
        return series.tokens[place]
    return (series.times[place] - series.times[0]) / 3600 if x == "time" else series.times[place] * 1000


def _marked(marks: Sequence[Mark], series: Series, x: XAxis) -> dict[str, Any]:
    """Lines at what happened to the run, with what it was."""
    if not series.iterations:
        return {}
    shown = [mark for mark in marks if mark.kind in _SHOWN_MARKS]
    lines = []
    notes = []
    for mark in shown:
        place = x_of(series, mark.iteration, x)
        lines.append(
            {
                "type": "line",
                "xref": "x",
                "yref": "paper",
                "x0": place,
                "x1": place,
                "y0": 0,
                "y1": 1,
                "name": mark.kind,
            }
        )
        notes.append(
            {
                "xref": "x",
                "yref": "paper",
                "x": place,
                "y": 1,
                "text": {"resumed": "↻", "failure": "✕", "stop": "■"}[mark.kind],
                "hovertext": mark.text,
                "showarrow": False,
                "yanchor": "bottom",
            }
        )
    return {"shapes": lines, "annotations": notes}
