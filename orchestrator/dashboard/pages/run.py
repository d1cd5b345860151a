"""The page of one run: how it does, and its curves."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from orchestrator.dashboard.pages.parts import AskedView
from orchestrator.dashboard.pages.run_common import (
    PREFIX,
    SECTIONS,
    Asked,
    AskedFolder,
    Text,
    part,
    section,
    tag_of,
    unchanged,
)
from orchestrator.dashboard.settings import Its
from orchestrator.review.charts.curves import CHARTS, Figure, chart_of, charts_with, figure_of
from orchestrator.review.charts.marks import MEANT, SIGNS
from orchestrator.review.charts.plan_vs_actual import references_of
from orchestrator.review.charts.timeline import marks_of
from orchestrator.review.damage import readable
from orchestrator.review.overview import overview_of, parts_of_time
from orchestrator.review.stored_index.signatures import signature
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import Started

router = APIRouter(prefix=PREFIX)


@router.get("")
def overview(request: Request, run: Asked, its: Its, view: AskedView) -> Response:
    """One run: how it does, and its curves. The parameters are those of the curves, for the controls to show."""
    found, problem = readable(lambda: overview_of(run, its.index.runs))
    device = found.device if found is not None else None
    charts = {"charts": charts_with(run.values, device), "drawn": view, "signs": SIGNS, "meant": MEANT}
    values = {"overview": found, "problem": problem, **charts}
    return section(request, run, "", "run.html", values)


@router.get("/head")
def head(request: Request, run: Asked, its: Its, tab: Text = "") -> Response:
    """What changes above the section `tab` while one looks at it, and above the curves its facts, too."""
    if tab not in SECTIONS:
        raise HTTPException(404, f"a run has no section {tab}")
    if tab:
        return part(request, run, "run_live.html", {"tab": tab})
    found, problem = readable(lambda: overview_of(run, its.index.runs))
    return part(request, run, "run_live.html", {"tab": tab, "overview": found, "problem": problem})


@router.get("/time")
def spent(request: Request, run: Asked, its: Its) -> Response:
    """Where its time went: all of its measurements are read for that, so it is a part that comes later."""
    found, problem = readable(lambda: its.beside.time_spent(run))
    parts = parts_of_time(found) if found is not None else []
    return part(request, run, "run_time.html", {"goodput": found, "parts": parts, "problem": problem})


@router.get("/figure/{chart}")
def figure(request: Request, chart: str, run: AskedFolder, its: Its, view: AskedView) -> Response:
    """A curve for plotly."""
    if chart not in CHARTS:
        raise HTTPException(404, f"there is no chart {chart}")
    tag = tag_of(signature(run)[:2], chart, view)
    if (same := unchanged(request, tag)) is not None:
        return same
    events = readable(run.events)[0] or EventLog()
    marks, _ = readable(lambda: marks_of(events))
    started = events.last(Started)
    references, _ = readable(lambda: references_of(chart, run))

    def draw() -> Figure:
        with its.index.reading(run) as series:
            return figure_of(
                chart_of(chart, started.device if started else None),
                {run.run_id: series},
                view,
                marks=marks or (),
                references=references or (),
            )

    made, problem = readable(draw)
    if made is None:
        raise HTTPException(503, f"the measurements cannot be read: {problem}")
    return JSONResponse(made, headers={"ETag": tag, "Cache-Control": "no-cache"})
