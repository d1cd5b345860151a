"""Pages as answers of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from orchestrator.dashboard.rendering import environment
from orchestrator.dashboard.security import form_mark, unsealed
from orchestrator.dashboard.settings import shared


def page(request: Request, template: str, values: Mapping[str, Any], status: int = 200) -> Response:
    """A page of this dashboard."""
    its = shared(request)
    settings = its.settings
    text = (
        environment()
        .get_template(template)
        .render(
            **values,
            path=request.url.path,
            behind=its.index.behind,
            allows_actions=settings.allows_actions,
            form_mark=form_mark(settings) if settings.allows_actions else "",
            runs_dir=str(settings.runs_dir),
            said=unsealed(settings, request),
        )
    )
    return HTMLResponse(text.encode(errors="replace"), status_code=status)
