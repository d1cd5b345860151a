"""What live runs have measured since a page drew them: only new points travel, and logs are read from there on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

from orchestrator.files.stored_files import size_of
from orchestrator.review.charts.catalogue import Chart
from orchestrator.review.charts.curves import Curve, View, curves_of, figure_of_curves
from orchestrator.review.charts.series import Series
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import MetricTail

_MOST_RECORDS = 1000
"""A page that is further behind draws its charts anew."""
_MOST_DIGITS = 16


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


def positions_text(positions: Iterable[Position]) -> str:
    """Those of several runs, for an address."""
    return ",".join("-".join(map(str, astuple(each))) for each in positions)


def read_positions(text: str) -> list[Position]:
    """What `positions_text` wrote; nothing where it is something else."""
    try:
        found = [Position(*map(_count, each.split("-"))) for each in text.split(",")]
    except (TypeError, ValueError):
        return []
    return found


def _count(text: str) -> int:
    """Raises ValueError for what is none that a file can have."""
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise ValueError("no count")
    return int(text)


def has_measured(run: RunDir, at: Position) -> bool:
    """Whether its measurements are others than they were, by their size alone."""
    return size_of(run.metrics_file) != at.offset


def is_current(run: RunDir, at: Position) -> bool:
    """Whether nothing was written since, by the sizes of the files alone."""
    return not has_measured(run, at) and size_of(run.events_file) == at.events


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
    return {chart.name: points_of(chart, [curves_of(chart, series, part)], part) for chart in charts}


def points_of(chart: Chart, runs: Sequence[Sequence[Curve]], view: View) -> list[dict[str, Any]]:
    """The points of each trace that curves of runs are in the figure of a chart."""
    figure = figure_of_curves(chart, {str(number): curves for number, curves in enumerate(runs)}, view)
    return [{"x": trace["x"], "y": trace["y"]} for trace in figure["data"]]


def without_points(curve: Curve) -> Curve:
    """A curve of a run that has measured nothing since."""
    nothing: dict[str, list[Any]] = {"x": [], "y": []}
    return replace(curve, points=nothing, smooth=nothing if curve.smooth is not None else None)
