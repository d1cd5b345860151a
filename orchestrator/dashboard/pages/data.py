"""What a run reads: its sources, and how much of each it has taken."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from orchestrator.dashboard.pages.parts import Begin, part_of
from orchestrator.dashboard.pages.run_common import PREFIX, Asked, AskedFolder, section
from orchestrator.review.charts.blend import blend_use, consumption_figure
from orchestrator.review.damage import readable

router = APIRouter(prefix=PREFIX + "/data")

_SOURCES = 40
"""Of a page."""


@router.get("")
def data(request: Request, run: Asked, begin: Begin = 0) -> Response:
    """Each source of the blend: what it has given, and how often it is read."""
    use, problem = readable(lambda: blend_use(run.run))
    values: dict[str, Any] = {"use": use, "problem": problem}
    if use is not None:
        values["trained_on"] = part_of(use.sources, begin, _SOURCES)
        values["validated_on"] = part_of(use.validation.sources if use.validation else (), begin, _SOURCES)
    return section(request, run, "data", "data.html", values)


@router.get("/figure")
def figure(run: AskedFolder) -> Response:
    """Tokens from each source over the steps."""
    found, _ = readable(lambda: consumption_figure(run))
    return JSONResponse(found or {"data": [], "layout": {}})
