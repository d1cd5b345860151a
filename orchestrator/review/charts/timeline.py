"""What happened to a run, as marks on the axes of its curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import (
    CheckpointFailed,
    CheckpointSaved,
    Event,
    Exited,
    Hang,
    Resumed,
    StepSkipped,
    StopRequested,
)
from orchestrator.run_directory.exits.causes import NO_FAILURES

Kind = Literal["resumed", "checkpoint", "skipped", "failure", "stop"]

_MOST_STEPS = 1 << 53
_KINDS: dict[type[Event], Kind] = {
    Resumed: "resumed",
    CheckpointSaved: "checkpoint",
    CheckpointFailed: "failure",
    StepSkipped: "skipped",
    Hang: "failure",
    StopRequested: "stop",
}


@dataclass(frozen=True)
class Mark:
    """Something that happened at an iteration. `time` in seconds since the epoch. Not `exact`: the iteration is the
    last that was spoken of before, and steps may have been measured since.
    """

    kind: Kind
    iteration: int
    time: float
    text: str
    exact: bool = True


def marks_of(events: EventLog) -> list[Mark]:
    """The marks of an event log, in its order; events that are torn or make no sense are passed over."""
    marks = []
    latest = 0
    for event in events:
        kind = _end(event) if isinstance(event, Exited) else _KINDS.get(type(event))
        is_known = event.at is not None and event.at < _MOST_STEPS
        if is_known:
            latest = event.at or 0
        # These are marked even where they name no iteration.
        has_place = is_known or isinstance(event, Exited | CheckpointFailed | Hang)
        if kind is not None and event.time is not None and has_place:
            marks.append(Mark(kind, latest, event.time, _text(event), is_known))
    return marks


def _end(exited: Exited) -> Kind | None:
    """How a launch ended; one that stopped as asked was marked where it was asked."""
    if exited.cause == "cancelled":
        return "stop"
    return "failure" if exited.code and exited.cause not in NO_FAILURES else None


def _text(event: Event) -> str:
    match event:
        case Resumed():
            return f"resumed from {event.iteration}"
        case CheckpointSaved():
            return f"checkpoint {event.iteration}"
        case StepSkipped():
            return f"step {event.iteration} skipped: {event.reason or ''}".rstrip(": ")
        case StopRequested():
            return f"stop requested by {event.by or 'someone'}"
        case Exited():
            return event.message or event.cause or event.kind
        case CheckpointFailed():
            return event.message or event.kind
        case _:
            return event.kind
