"""What became of a start, and who asked to be told of that."""

from __future__ import annotations

from orchestrator.launch.states.state_words import state_after
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import Exited, Requeued, RequeueFailed
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.sections.notifications import NotificationsSpec, Occasion


def wanted(run: RunDir, spec: NotificationsSpec, occasion: Occasion | None) -> bool:
    """Whether anybody asked to be told of that."""
    asked = spec.cells if is_cell(run) else spec.when
    return bool(spec.ways) and occasion in asked


def is_cell(run: RunDir) -> bool:
    """Whether the run is a cell of a sweep."""
    return run.membership.exists()


def occasion_of(events: EventLog, launch_id: str) -> Occasion | None:
    """What the events say became of a start, also while it waited to go on or, without a launch id, to begin; None for
    one that was refused, and for one that goes on or was lost.
    """
    if events.withdrawal is not None:
        return "stopped"
    occasion: Occasion | None = None
    for event in events.of_launch(launch_id):
        match event:
            case Exited():
                occasion = _after(str(event.cause))
            case Requeued():
                occasion = "requeued"
            case RequeueFailed():
                occasion = "failed"
    return occasion


def _after(cause: str) -> Occasion | None:
    match state_after(cause):
        case "completed":
            return "completed"
        case "stopped" | "cancelled":
            return "stopped"
        case _:
            return None if cause in ("held", "lease_lost") else "failed"
