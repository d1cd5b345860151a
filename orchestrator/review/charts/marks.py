"""What happened to a run, drawn over its curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.fields.formatting import shorten
from orchestrator.review.charts.axes import XAxis, plain, x_of, x_of_time
from orchestrator.review.charts.series import Series
from orchestrator.review.charts.timeline import Mark

SIGNS = {"resumed": "↻", "failure": "✕", "stop": "■"}
"""Of what is marked by a line."""
TICKS = {"checkpoint": "|", "skipped": "▽"}
"""Of what may happen often: ticks at the foot of a chart."""
MEANT = {
    "resumed": "resumed",
    "failure": "failed",
    "stop": "asked to stop",
    "checkpoint": "checkpoint",
    "skipped": "skipped step",
}
"""The signs in words."""
_SYMBOLS = {"checkpoint": "line-ns-open", "skipped": "triangle-down-open"}
"""How plotly draws the ticks."""

_MOST_MARKS = 100
_MOST_AT_ONE_PLACE = 5
_LONGEST_MARK = 120


TICK_AXIS = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}


def drawn_marks(
    marks: Sequence[Mark], series: Series, x: XAxis
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """What happened to the run: ticks at the foot for what happens often, lines with a sign above for the rest."""
    if not series.iterations:
        return [], [], []
    often = _last(mark for mark in marks if mark.kind not in SIGNS)
    lines = []
    together: dict[float, list[Mark]] = {}
    for mark in _last(mark for mark in marks if mark.kind in SIGNS):
        place = _place(series, mark, x)
        found = together.setdefault(place, [])
        if all(mark.kind != other.kind for other in found):
            line = {"type": "line", "xref": "x", "yref": "paper", "x0": place, "x1": place, "y0": 0, "y1": 1}
            lines.append({**line, "name": mark.kind})
        found.append(mark)
    notes = [_note(place, found) for place, found in together.items()]
    if not often:
        return [], lines, notes
    ticks = {
        "type": "scatter",
        "mode": "markers",
        "meta": "ticks",
        "yaxis": "y2",
        "showlegend": False,
        "name": "",
        "x": [_place(series, mark, x) for mark in often],
        "y": [0.02] * len(often),
        "text": [_said(mark) for mark in often],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "color": "dim",
            "symbol": [_SYMBOLS[mark.kind] for mark in often],
        },
    }
    return [ticks], lines, notes


def legend_of(marks: Iterable[Mark]) -> list[str]:
    """Each sign that stands in the charts of a run with these marks, with what it says."""
    kinds = {mark.kind for mark in marks}
    return [f"{sign} {MEANT[kind]}" for kind, sign in (SIGNS | TICKS).items() if kind in kinds]


def _note(place: float, marks: Sequence[Mark]) -> dict[str, Any]:
    """The signs of what happened at one place, above it."""
    texts = [_said(mark) for mark in marks]
    more = len(texts) - _MOST_AT_ONE_PLACE
    return {
        "xref": "x",
        "yref": "paper",
        "x": place,
        "y": 1,
        "text": "".join(SIGNS[kind] for kind in dict.fromkeys(mark.kind for mark in marks)),
        "hovertext": "<br>".join([*texts[:_MOST_AT_ONE_PLACE], *([f"and {more} more"] if more > 0 else [])]),
        "showarrow": False,
        "yanchor": "bottom",
    }


def _said(mark: Mark) -> str:
    return plain(shorten(mark.text, _LONGEST_MARK))


def _last(marks: Iterable[Mark]) -> list[Mark]:
    """The last of them: a run that skips each step has as many as steps."""
    return list(marks)[-_MOST_MARKS:]


def _place(series: Series, mark: Mark, x: XAxis) -> float | int:
    if x in ("time", "clock"):
        return x_of_time(series, mark.time, x)
    iteration = mark.iteration
    if not mark.exact:
        before = (each for each, moment in zip(series.iterations, series.times, strict=True) if moment <= mark.time)
        iteration = max(iteration, max(before, default=0))
    return x_of(series, iteration, x)
