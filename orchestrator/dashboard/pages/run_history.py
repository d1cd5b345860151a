"""What happened to a run, and what it has saved: its events, its checkpoints and their evaluations."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Query, Request, Response

from orchestrator.dashboard.pages.parts import Begin, part_of
from orchestrator.dashboard.pages.run_common import PREFIX, Asked, section
from orchestrator.launch.event_messages import Group, Told, history_of, told
from orchestrator.review.checkpoint_history import checkpoints_of, measured_in
from orchestrator.review.damage import readable

router = APIRouter(prefix=PREFIX)

_EVENTS = 100
_CHECKPOINTS = 50
"""Of a page."""


@router.get("/events")
def events(
    request: Request,
    run: Asked,
    q: Annotated[str, Query(max_length=200)] = "",
    group: Group | Literal[""] = "",
    begin: Begin = 0,
) -> Response:
    """The event log as sentences, the newest first."""
    found, problem = readable(lambda: told(history_of(run.run)))
    wanted = q.casefold()
    kept = [
        each
        for each in reversed(found or [])
        if group in ("", each.group) and (wanted in each.text.casefold() or wanted in each.kind)
    ]
    shown = part_of(kept, begin, _EVENTS, {"q": q, "group": group}, _words_of)
    values = {"q": q, "group": group, "groups": get_args(Group), "problem": problem}
    return section(request, run, "events", "run_events.html", {**values, "part": shown, "of_all": len(found or [])})


def _words_of(event: Told) -> str:
    return event.text + "\n".join(event.details)


@router.get("/checkpoints")
def checkpoints(request: Request, run: Asked, begin: Begin = 0) -> Response:
    """Its checkpoints and their evaluations, the newest first."""
    found, problem = readable(lambda: checkpoints_of(run.run, run.run.events()))
    shown = part_of(found or [], begin, _CHECKPOINTS)
    values = {"part": shown, "results": measured_in(shown.items), "problem": problem}
    return section(request, run, "checkpoints", "run_checkpoints.html", values)
