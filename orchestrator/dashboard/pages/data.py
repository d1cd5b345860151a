"""What a run reads: its sources, and how much of each it has taken."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from orchestrator.dashboard.html import page
from orchestrator.dashboard.pages.run import asked_run
from orchestrator.errors import UserError
from orchestrator.review.blend import blend_use, consumption_figure
from orchestrator.review.summary import RunSummary

router = APIRouter(prefix="/runs/{name}/{run_id}/data")


@router.get("")
def data(request: Request, run: Annotated[RunSummary, Depends(asked_run)]) -> Response:
    """Each source of the blend: what it has given, and how often it is read."""
    try:
        use, problem = blend_use(run.run), None
    except UserError as error:
        use, problem = None, str(error)
    return page(request, "data.html", {"run": run, "use": use, "problem": problem})


@router.get("/figure")
def figure(run: Annotated[RunSummary, Depends(asked_run)]) -> Response:
    """Tokens from each source over the steps."""
    return JSONResponse(consumption_figure(run.run))
