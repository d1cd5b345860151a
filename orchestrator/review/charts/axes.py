"""The x axes of curves, and texts as plotly takes them."""

from __future__ import annotations

import time
from html import escape
from typing import Literal

from orchestrator.review.charts.series import Series

XAxis = Literal["steps", "tokens", "time", "clock", "flops"]
X_TITLES = {
    "steps": "step",
    "tokens": "tokens",
    "time": "hours since the first step",
    "clock": "time",
    "flops": "FLOPs",
}
"""What the values of an axis are."""


def x_of(series: Series, iteration: int, x: XAxis) -> float | int:
    """Where an iteration stands on an axis. `time`: hours since the first step; `clock`: milliseconds of this machine's
    clock, as plotly has dates; `flops`: of the model, forward and backward, up to that step.
    """
    if x == "steps":
        return iteration
    place = series.at(iteration)
    if x in ("tokens", "flops"):
        return series.tokens[place] * (1 if x == "tokens" else series.flops_per_token or 0.0)
    return x_of_time(series, series.times[place], x)


def x_of_time(series: Series, moment: float, x: XAxis) -> float:
    # Of a date plotly knows no zone: what it takes for UTC is shown as it is.
    if x == "time":
        return (moment - series.times[0]) / 3600
    return round((moment + zone_of(series).tm_gmtoff) * 1000)


def zone_of(series: Series) -> time.struct_time:
    """The zone at a run's last step, for all of its steps: an axis does not jump in autumn."""
    try:
        return time.localtime(series.times[-1])
    except (ValueError, OverflowError, OSError):
        return time.localtime(0)


def x_title(x: XAxis) -> str:
    return f"time ({time.strftime('%Z')})" if x == "clock" else X_TITLES[x]


def plain(text: str) -> str:
    """A text in which plotly finds no markup: for whatever a person has named."""
    return escape(text, quote=False)
