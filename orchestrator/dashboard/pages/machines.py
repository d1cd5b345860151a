"""How busy the machines of a run were."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from orchestrator.dashboard.pages.run_common import PREFIX, Asked, AskedFolder, section, tag_of, unchanged
from orchestrator.review.charts.machines import MEASURES, machine_figure, measures_of, nodes_of, system_version
from orchestrator.review.damage import readable

router = APIRouter(prefix=PREFIX + "/machines")


@router.get("")
def machines(request: Request, run: Asked) -> Response:
    """Each machine as it was last seen, and its curves."""
    nodes, problem = readable(lambda: nodes_of(run.run))
    measures, _ = readable(lambda: measures_of(run.run))
    values = {"nodes": nodes or [], "measures": measures or [], "problem": problem}
    return section(request, run, "machines", "machines.html", values)


@router.get("/figure/{measure}")
def figure(request: Request, measure: str, run: AskedFolder) -> Response:
    """One measure of each machine over time."""
    if measure not in MEASURES:
        raise HTTPException(404, f"there is no measurement named {measure}")
    tag = tag_of(readable(lambda: system_version(run)), measure)
    if (same := unchanged(request, tag)) is not None:
        return same
    found, _ = readable(lambda: machine_figure(run, MEASURES[measure]))
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    return JSONResponse(found or {"data": [], "layout": {}}, headers=headers)
