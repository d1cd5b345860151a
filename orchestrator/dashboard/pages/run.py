"""The page of one run."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse

from orchestrator.dashboard.actions import actions_of
from orchestrator.dashboard.html import page
from orchestrator.dashboard.settings import Shared, shared
from orchestrator.review.charts import CHARTS, XAxis, figure_of
from orchestrator.review.summary import RunSummary
from orchestrator.review.timeline import marks_of

router = APIRouter(prefix="/runs/{name}/{run_id}")


def asked_run(name: str, run_id: str, its: Annotated[Shared, Depends(shared)]) -> RunSummary:
    """The run that an address names. Raises HTTPException (404) where there is none."""
    found = its.index.find(name, run_id)
    if found is None:
        raise HTTPException(404, f"there is no run {name}/{run_id} in {its.settings.runs_dir}")
    return found


@router.get("")
def overview(request: Request, run: Annotated[RunSummary, Depends(asked_run)]) -> Response:
    """One run: how it does, and its curves."""
    return page(request, "run.html", {"run": run, "charts": CHARTS, "actions": actions_of})


@router.get("/figure/{chart}")
def figure(
    chart: str,
    run: Annotated[RunSummary, Depends(asked_run)],
    its: Annotated[Shared, Depends(shared)],
    x: XAxis = "steps",
    smoothing: Annotated[float, Query(ge=0, lt=1)] = 0.0,
    log: bool = False,
) -> Response:
    """A curve for plotly."""
    if chart not in CHARTS:
        raise HTTPException(404, f"there is no chart {chart}")
    series = its.index.series(run.run)
    made: dict[str, Any] = figure_of(
        CHARTS[chart], {run.run.run_id: series}, x=x, smoothing=smoothing, log=log, marks=marks_of(run.run.events())
    )
    return JSONResponse(made)
