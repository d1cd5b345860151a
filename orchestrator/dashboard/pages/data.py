"""What a run reads: its sources, and how much of each it has taken."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from orchestrator.dashboard.pages.asked import PREFIX, Asked, AskedFolder, section
from orchestrator.errors import UserError
from orchestrator.review.blend import blend_use, consumption_figure

router = APIRouter(prefix=PREFIX + "/data")


@router.get("")
def data(request: Request, run: Asked) -> Response:
    """Each source of the blend: what it has given, and how often it is read."""
    try:
        use, problem = blend_use(run.run), None
    except UserError as error:
        use, problem = None, str(error)
    return section(request, run, "data", "data.html", {"use": use, "problem": problem})


@router.get("/figure")
def figure(run: AskedFolder) -> Response:
    """Tokens from each source over the steps."""
    return JSONResponse(consumption_figure(run))
