"""What became of a start, and who asked to be told of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.launch.state_words import state_after
from orchestrator.rundir import RunDir
from orchestrator.spec.notifications import NotificationsSpec, Occasion

_ON_THE_WAY = ("submitted", "launched", "withdrawn")


def wanted(run: RunDir, spec: NotificationsSpec, occasion: Occasion | None) -> bool:
    """Whether anybody asked to be told of that."""
    asked = spec.cells if is_cell(run) else spec.when
    return bool(spec.ways) and occasion in asked


def is_cell(run: RunDir) -> bool:
    """Whether the run is a cell of a sweep."""
    return run.membership.exists()


def occasion_of(events: Sequence[Mapping[str, Any]], launch_id: str) -> Occasion | None:
    """What the events say became of a start, also while it waited to go on or, without a launch id, to begin; None for
    one that was refused, and for one that goes on or was lost.
    """
    if withdrawal(events) is not None:
        return "stopped"
    occasion: Occasion | None = None
    for event in events:
        if event.get("launch_id") != launch_id:
            continue
        match event.get("event"):
            case "exited":
                occasion = _after(str(event.get("cause")))
            case "requeued":
                occasion = "requeued"
            case "requeue_failed":
                occasion = "failed"
    return occasion


def withdrawal(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The event by which a person took the run out of a queue, if that is where it stands."""
    newest = next((event for event in reversed(events) if event.get("event") in _ON_THE_WAY), None)
    return newest if newest is not None and newest["event"] == "withdrawn" else None


def _after(cause: str) -> Occasion | None:
    match state_after(cause):
        case "completed":
            return "completed"
        case "stopped" | "cancelled":
            return "stopped"
        case _:
            return None if cause in ("held", "lease_lost") else "failed"
