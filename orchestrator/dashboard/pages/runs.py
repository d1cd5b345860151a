"""The page of all runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from orchestrator.dashboard.html import page
from orchestrator.dashboard.settings import Shared, shared

router = APIRouter()


@router.get("/")
def runs(request: Request, its: Annotated[Shared, Depends(shared)]) -> Response:
    """The runs of the folder, the newest first."""
    return page(request, "runs.html", {"runs": its.index.runs, "is_complete": its.index.is_complete})
