"""Keeping a view of a page by a name, and forgetting it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse

from orchestrator.dashboard.security import checked_form, sealed
from orchestrator.dashboard.settings import Its
from orchestrator.errors import UserError
from orchestrator.review.saved_views import remove_view, save_view

router = APIRouter()


async def form_fields(request: Request, its: Its) -> dict[str, str]:
    """The fields of a form of ours. Raises HTTPException (403) for any other, and where nobody may act."""
    return await checked_form(its.settings, request)


@router.post("/views")
async def change_views(fields: Annotated[dict[str, str], Depends(form_fields)], its: Its) -> Response:
    """Keep or forget a view, and show the page that it is of."""
    said = await run_in_threadpool(_change, its, fields)
    back = "/" + quote(fields.get("back", "").lstrip("/\\"), safe="/%")
    query = fields.get("query", "").partition("#")[0]
    shown = quote(query, safe="&=%+/:.,-_~") + "&" if query else ""
    return RedirectResponse(f"{back}?{shown}{sealed(its.settings, said)}", status_code=303)


def _change(its: Its, fields: dict[str, str]) -> str:
    page, name = fields.get("page", ""), fields.get("name", "")
    try:
        if fields.get("do") == "remove":
            remove_view(its.settings.runs_dir, page, name)
            return f"The view {name} is removed."
        made = save_view(its.settings.runs_dir, page, name, fields.get("query", ""))
        return f"This view is kept as {made.name}."
    except UserError as error:
        return f"It failed: {error}."
    except OSError as error:
        return f"It failed: {error.strerror or error}."
