"""The page of one run: how it does, and its curves."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from orchestrator.dashboard.chart_choice import AskedChoice, Followed, chosen
from orchestrator.dashboard.pages.parts import AskedView
from orchestrator.dashboard.pages.run_common import (
    PREFIX,
    SECTIONS,
    Asked,
    AskedFolder,
    Text,
    address_of,
    part,
    section,
    tag_of,
    unchanged,
)
from orchestrator.dashboard.settings import Its
from orchestrator.review.charts.catalogue import CHARTS, Chart, chart_named, charts_with
from orchestrator.review.charts.changes import Position, first_new_step, is_current, new_points, position_of
from orchestrator.review.charts.curves import Figure, figure_of
from orchestrator.review.charts.marks import legend_of
from orchestrator.review.charts.plan_vs_actual import references_of
from orchestrator.review.charts.series import Series
from orchestrator.review.charts.timeline import marks_of
from orchestrator.review.damage import readable
from orchestrator.review.overview import overview_of, parts_of_time
from orchestrator.review.saved_views import saved_views
from orchestrator.review.stored_index.signatures import signature
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import Started

router = APIRouter(prefix=PREFIX)


@router.get("")
def overview(request: Request, run: Asked, its: Its, asked: AskedChoice) -> Response:
    """One run: how it does, and its curves, as the address says."""
    choice, moved = asked
    address = address_of(run.run)
    if moved is not None:
        return RedirectResponse(f"{address}?{moved}", status_code=303)
    found, problem = readable(lambda: overview_of(run, its.index.runs))
    events = readable(run.run.events)[0] or EventLog()
    values = its.beside.latest(run)
    charts = charts_with(values, found.device if found is not None else None)

    def source(chart: Chart) -> str:
        known = chart.name in CHARTS
        return f"{address}/figure/{chart.name}" if known else f"{address}/metric?{urlencode({'key': chart.name})}"

    return section(
        request,
        run,
        "",
        "run.html",
        {
            "overview": found,
            "problem": problem,
            "choice": choice,
            "chosen": chosen(charts, choice),
            "source": source,
            "known": len(values),
            "legend": legend_of(readable(lambda: marks_of(events))[0] or ()),
            "saved": saved_views(its.settings.runs_dir, "run"),
        },
    )


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
    """A chart that we know, for plotly."""
    if chart not in CHARTS:
        raise HTTPException(404, f"there is no chart {chart}")
    return _figure(request, chart, run, its, view)


@router.get("/metric")
def metric(request: Request, run: AskedFolder, its: Its, view: AskedView, key: Text = "") -> Response:
    """The chart of any other metric that the run has measured, for plotly."""
    return _figure(request, key, run, its, view)


def _figure(request: Request, name: str, run: AskedFolder, its: Its, view: AskedView) -> Response:
    tag = tag_of(signature(run)[:2], name, view)
    if (same := unchanged(request, tag)) is not None:
        return same
    events = readable(run.events)[0] or EventLog()
    marks, _ = readable(lambda: marks_of(events))
    started = events.last(Started)
    references, _ = readable(lambda: references_of(name, run))

    def draw(series: Series) -> Figure | None:
        chart = chart_named(name, series.columns, started.device if started else None)
        if chart is None:
            return None
        return figure_of(chart, {run.run_id: series}, view, marks=marks or (), references=references or ())

    def read() -> Figure | None:
        with its.beside.reading(run, view.x) as series:
            drawn = draw(series)
            return None if drawn is None else {**drawn, "now": position_of(run, series).to_record()}

    made, problem = readable(read)
    if problem is not None:
        return JSONResponse({**(draw(Series()) or {"data": [], "layout": {}}), "problem": _unread(problem)})
    if made is None:
        raise HTTPException(404, f"the run has not measured {name}")
    return JSONResponse(made, headers={"ETag": tag, "Cache-Control": "no-cache"})


Count = Annotated[int, Query(ge=0, le=1 << 53)]


@router.get("/changes")
def changes(
    run: AskedFolder,
    its: Its,
    view: AskedView,
    offset: Count | None = None,
    step: Count = 0,
    events: Count = 0,
    keys: Count = 0,
    chart: Followed = (),
) -> Response:
    """What was measured since a page drew these charts: 204 where nothing was written, which the sizes of two files
    say. `figures` is null where they have to be drawn anew; `problem`: why nothing can be read.
    """
    at = Position(offset or 0, step, events, keys)
    if offset is not None and is_current(run, at):
        return Response(status_code=204)

    def read() -> dict[str, object]:
        with its.beside.reading(run, view.x) as series:
            now = position_of(run, series)
            since = first_new_step(run, at) if now.events == at.events else None
            found = [each for name in chart if (each := chart_named(name, series.columns)) is not None]
            figures = None if since is None else new_points(found, series, view, since)
            return {"now": now.to_record(), "figures": figures}

    made, problem = readable(read)
    return JSONResponse({"problem": _unread(problem)} if made is None else made)


def _unread(problem: str | None) -> str:
    return f"the measurements cannot be read: {problem}"
