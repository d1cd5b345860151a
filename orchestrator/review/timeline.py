"""What happened to a run, as marks on the axes of its curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from orchestrator.causes import NO_FAILURES

Kind = Literal["resumed", "checkpoint", "skipped", "failure", "stop"]

_MOST_STEPS = 1 << 53
_END_OF_TIME = 1e11  # in the year 5138
_KINDS: dict[str, Kind] = {
    "resumed": "resumed",
    "checkpoint_saved": "checkpoint",
    "checkpoint_failed": "failure",
    "step_skipped": "skipped",
    "hang": "failure",
    "stop_requested": "stop",
}
_WITHOUT_A_STEP = ("exited", "checkpoint_failed", "hang")
"""They are marked even where they name no iteration."""


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


def marks_of(events: Iterable[Mapping[str, Any]]) -> list[Mark]:
    """The marks of an event log, in its order; events that are torn or make no sense are passed over."""
    marks = []
    latest = 0
    for event in events:
        kind = _KINDS.get(str(event.get("event")))
        if event.get("event") == "exited":
            kind = _end(event)
        iteration, time = event.get("iteration"), event.get("time")
        is_known = _is_within(iteration, _MOST_STEPS)
        if _is_within(iteration, _MOST_STEPS):
            latest = int(iteration)
        if kind is not None and _is_within(time, _END_OF_TIME) and (is_known or event.get("event") in _WITHOUT_A_STEP):
            marks.append(Mark(kind, latest, float(time), _text(kind, event), is_known))
    return marks


def _end(event: Mapping[str, Any]) -> Kind | None:
    """How a launch ended; one that stopped as asked was marked where it was asked."""
    if event.get("cause") == "cancelled":
        return "stop"
    return "failure" if event.get("code") and event.get("cause") not in NO_FAILURES else None


def _is_within(value: Any, end: float) -> TypeGuard[int]:
    """Whether it is a number from 0 on that a page can show; a damaged log may hold any."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < end


def _text(kind: Kind, event: Mapping[str, Any]) -> str:
    if kind == "resumed":
        return f"resumed from {event['iteration']}"
    if kind == "checkpoint":
        return f"checkpoint {event['iteration']}"
    if kind == "skipped":
        return f"step {event['iteration']} skipped: {event.get('reason', '')}".rstrip(": ")
    if kind == "stop" and event.get("event") == "stop_requested":
        return f"stop asked for by {event.get('by', 'someone')}"
    return str(event.get("message") or event.get("cause") or event.get("event"))
