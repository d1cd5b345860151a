"""What a run reads: its sources, and how much of each it has taken."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from orchestrator.dashboard.pages.asked import PREFIX, Asked, AskedFolder, section
from orchestrator.review.blend import blend_use, consumption_figure
from orchestrator.review.damage import readable

router = APIRouter(prefix=PREFIX + "/data")


@router.get("")
def data(request: Request, run: Asked) -> Response:
    """Each source of the blend: what it has given, and how often it is read."""
    use, problem = readable(lambda: blend_use(run.run))
    return section(request, run, "data", "data.html", {"use": use, "problem": problem})


@router.get("/figure")
def figure(run: AskedFolder) -> Response:
    """Tokens from each source over the steps."""
    found, _ = readable(lambda: consumption_figure(run))
    return JSONResponse(found or {"data": [], "layout": {}})
