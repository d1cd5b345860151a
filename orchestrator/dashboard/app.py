"""The application: its pages, its assets, and what it answers where something is wrong."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Timer

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.gzip import GZipMiddleware
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from orchestrator.dashboard.assets import asset, prepare_assets
from orchestrator.dashboard.html import page
from orchestrator.dashboard.pages import (
    actions,
    cluster,
    compare,
    data,
    machines,
    run,
    run_history,
    run_logs,
    run_spec_and_plan,
    runs,
    start,
    sweeps,
    views,
)
from orchestrator.dashboard.rendering import environment
from orchestrator.dashboard.security import Next, guarded
from orchestrator.dashboard.settings import Settings, Shared
from orchestrator.errors import UserError
from orchestrator.fields.formatting import few, shorten
from orchestrator.review.index import RunIndex
from orchestrator.review.series_cache import SeriesCache
from orchestrator.spec.messages.validation import in_words

_SECONDS_BEFORE_ZIPPING = 2.0
"""The first page goes before."""
_LONGEST_PROBLEM = 1000
_A_YEAR = 365 * 86400
_PAGES = (
    *(runs, actions, run, run_logs, run_history, run_spec_and_plan, data, machines, cluster, compare, sweeps),
    *(start, views),
)

logger = logging.getLogger(__name__)


def create_app(settings: Settings) -> FastAPI:
    """The dashboard of a runs folder. It looks for runs from its start to its end."""
    index = RunIndex(settings.runs_dir)
    environment()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        index.start()
        later = Timer(_SECONDS_BEFORE_ZIPPING, prepare_assets)
        later.daemon = True
        later.start()
        yield
        later.cancel()
        index.stop()

    # A redirect would name whatever a visitor calls the server.
    app = FastAPI(
        title="orchestrator dashboard",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.shared = Shared(settings, index, SeriesCache(index))
    for module in _PAGES:
        app.include_router(module.router)

    @app.get("/assets/{tag}/{name}")
    def send_asset(request: Request, tag: str, name: str) -> Response:
        found = asset(name)
        if found is None:
            raise HTTPException(404, f"there is no asset {name}")
        headers = {"Cache-Control": f"public, max-age={_A_YEAR}, immutable", "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(found.zipped, media_type=found.type, headers={**headers, "Content-Encoding": "gzip"})
        return Response(found.content, media_type=found.type, headers=headers)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    _answer_errors(app)
    app.add_middleware(GZipMiddleware, minimum_size=2048, compresslevel=5)

    @app.middleware("http")
    async def guard(request: Request, call_next: Next) -> Response:
        return await guarded(settings, request, call_next)

    return app


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(StarletteHTTPException)
    def say_what_is_wrong(request: Request, error: StarletteHTTPException) -> Response:
        return _problem(request, error.status_code, error.detail)

    @app.exception_handler(RequestValidationError)
    def say_which_parameter(request: Request, error: RequestValidationError) -> Response:
        found = [f"{shorten('.'.join(map(str, each['loc'][1:])))}: {in_words(each)}" for each in error.errors()]
        return _problem(request, 400, few(found))

    @app.exception_handler(UserError)
    def say_what_cannot_be_read(request: Request, error: UserError) -> Response:
        return _problem(request, 404, str(error))

    @app.exception_handler(ClientDisconnect)
    def say_nothing(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)


def _problem(request: Request, status: int, message: str) -> Response:
    """The error message; part of it may come from the URL."""
    return page(request, "problem.html", {"status": status, "message": shorten(message, _LONGEST_PROBLEM)}, status)
