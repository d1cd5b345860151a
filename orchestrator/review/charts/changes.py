"""What a live run has measured since a page drew it: only new points travel, and the log is read from there on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.files.stored_files import size_of
from orchestrator.review.charts.catalogue import Chart
from orchestrator.review.charts.curves import View, curves_of, figure_of_curves
from orchestrator.review.charts.series import Series
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import MetricTail

_MOST_RECORDS = 1000
"""A page that is further behind draws its charts anew."""


@dataclass(frozen=True)
class Position:
    """How far a page has drawn a run: a byte of the metric log, the step that was written last before it, the size of
    the event log, and how many metrics there were.
    """

    offset: int
    step: int
    events: int
    keys: int

    def to_record(self) -> dict[str, int]:
        return asdict(self)


def position_of(run: RunDir, series: Series) -> Position:
    """Where a figure of these measurements stands."""
    return Position(series.offset, series.position, size_of(run.events_file), len(series.columns))


def is_current(run: RunDir, at: Position) -> bool:
    """Whether nothing was written since, by the sizes of the files alone."""
    return size_of(run.metrics_file) == at.offset and size_of(run.events_file) == at.events


def first_new_step(run: RunDir, at: Position) -> int | None:
    """The first step of which something was measured since; None where charts have to be drawn anew: a resume has
    undone steps, the log was replaced, or much was written.
    """
    if size_of(run.metrics_file) < at.offset:
        return None
    found = MetricTail(run.metrics_file, at.offset).poll(_MOST_RECORDS + 1)
    if len(found) > _MOST_RECORDS or any(not each.is_evaluation and each.iteration <= at.step for each in found):
        return None
    return min((each.iteration for each in found), default=at.step)


def new_points(charts: Iterable[Chart], series: Series, view: View, since: int) -> dict[str, list[dict[str, Any]]]:
    """What was measured from a step on: by chart the points of each of its traces, in the order of its figure."""
    part = replace(view, since=since)
    return {
        chart.name: [
            {"x": trace["x"], "y": trace["y"]}
            for trace in figure_of_curves(chart, {"": curves_of(chart, series, part)}, part)["data"]
        ]
        for chart in charts
    }
