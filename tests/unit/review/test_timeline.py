"""Marks of an event log."""

from __future__ import annotations

from support.event_log import log_of

from orchestrator.review.charts.catalogue import CHARTS
from orchestrator.review.charts.curves import figure_of
from orchestrator.review.charts.series import Series
from orchestrator.review.charts.timeline import marks_of
from orchestrator.tracking.measurements.metrics import Metric


def test_an_end_without_an_iteration_stands_at_the_last_step_before_it() -> None:
    events = [
        {"time": 5.0, "event": "checkpoint_saved", "iteration": 2, "seconds": 1, "bytes": 1},
        {"time": 10.5, "event": "exited", "code": 1, "cause": "killed", "message": "by SIGKILL", "iteration": None},
        {"time": 11.0, "event": "resumed", "iteration": 2},
        {"time": "later", "event": "hang", "iteration": 3},
        {"event": "hang", "iteration": 3, "time": None},
    ]
    marks = marks_of(log_of(*events))
    assert [(mark.kind, mark.iteration, mark.exact) for mark in marks] == [
        ("checkpoint", 2, True),
        ("failure", 2, False),
        ("resumed", 2, True),
    ]
    series = Series()
    series.add(Metric(2.0 * step, step, 1, 1, {"train/loss": 1.0}) for step in range(1, 6))
    shapes = figure_of(CHARTS["loss"], {"run": series}, marks=marks)["layout"]["shapes"]
    assert [(shape["name"], shape["x0"]) for shape in shapes] == [("failure", 5), ("resumed", 2)]


def test_who_was_stopped_or_cancelled_has_not_failed() -> None:
    events = [
        {"time": 5.0, "event": "stop_requested", "by": "SIGTERM", "iteration": 2},
        {"time": 6.0, "event": "exited", "code": 1, "cause": "stopped", "message": "", "iteration": 2},
        {"time": 7.0, "event": "exited", "code": -9, "cause": "cancelled", "message": "at once", "iteration": None},
        # Ended by force when rank 0 had already said so.
        {"time": 8.0, "event": "exited", "code": -9, "cause": "completed", "message": "", "iteration": None},
        {"time": 9.0, "event": "exited", "code": 1, "cause": "requeued", "message": "", "iteration": None},
        {"time": 10.0, "event": "exited", "code": 1, "cause": [], "message": "torn", "iteration": None},
    ]
    *marks, torn = marks_of(log_of(*events))
    assert torn.kind == "failure"
    assert [(mark.kind, mark.iteration, mark.text) for mark in marks] == [
        ("stop", 2, "stop requested by SIGTERM"),
        ("stop", 2, "at once"),
    ]
