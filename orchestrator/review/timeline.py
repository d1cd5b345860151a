"""What happened to a run, as marks on the axes of its curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["resumed", "checkpoint", "failure", "stop"]

_KINDS: dict[str, Kind] = {
    "resumed": "resumed",
    "checkpoint_saved": "checkpoint",
    "checkpoint_failed": "failure",
    "hang": "failure",
    "stop_requested": "stop",
}


@dataclass(frozen=True)
class Mark:
    """Something that happened at an iteration. `time` in seconds since the epoch."""

    kind: Kind
    iteration: int
    time: float
    text: str


def marks_of(events: Iterable[Mapping[str, Any]]) -> list[Mark]:
    """The marks of an event log, in its order; events that are torn or make no sense are passed over."""
    marks = []
    for event in events:
        kind = _KINDS.get(str(event.get("event")))
        if event.get("event") == "exited" and event.get("code"):
            kind = "failure"
        iteration, time = event.get("iteration"), event.get("time")
        if kind is not None and isinstance(iteration, int) and isinstance(time, int | float):
            marks.append(Mark(kind, iteration, float(time), _text(kind, event)))
    return marks


def _text(kind: Kind, event: Mapping[str, Any]) -> str:
    if kind == "resumed":
        return f"resumed from {event['iteration']}"
    if kind == "checkpoint":
        return f"checkpoint {event['iteration']}"
    if kind == "stop":
        return f"stop asked for by {event.get('by', 'someone')}"
    return str(event.get("message") or event.get("cause") or event.get("event"))
