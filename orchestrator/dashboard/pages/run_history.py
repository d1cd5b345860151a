"""What happened to a run, and what it has saved: its events, its checkpoints and their evaluations."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Query, Request, Response

from orchestrator.dashboard.pages.asked import PREFIX, Asked, section
from orchestrator.review.damage import readable
from orchestrator.review.saved import checkpoints_of, measured_in
from orchestrator.review.story import Group, told

router = APIRouter(prefix=PREFIX)

_EVENTS_OF_A_PAGE = 200


@router.get("/events")
def events(
    request: Request,
    run: Asked,
    q: Annotated[str, Query(max_length=200)] = "",
    group: Group | Literal[""] = "",
    page: Annotated[int, Query(ge=1, le=1 << 30)] = 1,
) -> Response:
    """The event log as sentences, the newest first."""
    found, problem = readable(lambda: told(run.run.events()))
    wanted = q.casefold()
    kept = [
        each
        for each in reversed(found or [])
        if group in ("", each.group) and (wanted in each.text.casefold() or wanted in each.kind)
    ]
    begin = (page - 1) * _EVENTS_OF_A_PAGE
    values = {"q": q, "group": group, "groups": get_args(Group), "number": page, "problem": problem}
    shown = {"events": kept[begin : begin + _EVENTS_OF_A_PAGE], "count": len(kept), "of_all": len(found or [])}
    return section(request, run, "events", "run_events.html", {**values, **shown, "most": _EVENTS_OF_A_PAGE})


@router.get("/checkpoints")
def checkpoints(request: Request, run: Asked) -> Response:
    """Its checkpoints and evaluations, the newest first."""
    found, problem = readable(lambda: checkpoints_of(run.run, run.run.events()))
    values = {"checkpoints": found or [], "results": measured_in(found or []), "problem": problem}
    return section(request, run, "checkpoints", "run_checkpoints.html", values)
