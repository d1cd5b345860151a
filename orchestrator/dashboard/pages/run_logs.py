"""The logs of a run: a page at a time, searched, followed, and as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from threading import BoundedSemaphore
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from orchestrator.dashboard.pages.run_common import PREFIX, Asked, AskedFolder, section
from orchestrator.errors import UserError
from orchestrator.review.damage import readable
from orchestrator.review.logs.log_search import SearchPattern, SearchPosition, SearchResults, search
from orchestrator.review.logs.page_size import fitting
from orchestrator.review.logs.pages import (
    LogFile,
    Page,
    find_log,
    first_to_read,
    last_page,
    log_list,
    page_at,
    page_before,
    page_from,
)

router = APIRouter(prefix=PREFIX + "/logs")

_LISTED_BYTES = 8 << 10
"""Of the choice of a log, as it is sent."""
_OPTION_BYTES = 60
_LONGEST_QUESTION = 500
_SEARCHES_AT_ONCE = 2
_SEARCHES = BoundedSemaphore(_SEARCHES_AT_ONCE)
"""Each is a program that reads as fast as it can, and takes a thread that pages are answered by."""
SECONDS_OF_WAITING = 1.0
_CHUNK_BYTES = 1 << 16

Name = Annotated[str, Query(max_length=400)]
"""A log's path below the run directory."""


@router.get("")
def logs(
    request: Request,
    run: Asked,
    file: Name = "",
    line: Annotated[int | None, Query(ge=1, lt=1 << 53)] = None,
    before: Annotated[int | None, Query(ge=2, lt=1 << 53)] = None,
    q: Annotated[str, Query(max_length=_LONGEST_QUESTION)] = "",
    regex: bool = False,
    everywhere: bool = False,
    log: Name = "",
    begin: Annotated[int, Query(alias="from", ge=0, lt=1 << 53)] = 0,
    number: Annotated[int, Query(ge=1, lt=1 << 53)] = 1,
) -> Response:
    """One log from `line` on, up to the line `before`, or its end; or the lines that have `q`. A search goes on in
    `log` at byte `from`, which is the beginning of line `number`.
    """
    known = log_list(run.run)
    chosen = next((each for each in known if each.name == file), None) if file else first_to_read(known)
    listed = fitting(known, lambda log: 2 * log.name, _LISTED_BYTES, _OPTION_BYTES)
    values: dict[str, Any] = {"logs": known, "chosen": chosen, "file": file, "page": None, "found": None}
    values |= {"q": q, "regex": regex, "everywhere": everywhere, "problem": None, "listed": listed}
    if q and known:
        start = SearchPosition(log, begin, number) if log else None
        values["found"], values["problem"] = _search(
            known if everywhere or chosen is None else [chosen], q, regex, start
        )
    elif chosen is not None:
        values["page"], values["problem"] = readable(partial(_page, chosen, line, before))
        values["follows"] = line is None and before is None
    return section(request, run, "logs", "run_logs.html", values)


def _page(log: LogFile, line: int | None, before: int | None) -> Page:
    if line is not None:
        return page_at(log, line)
    return page_before(log, before) if before is not None else last_page(log)


def _search(
    logs: list[LogFile], q: str, regex: bool, start: SearchPosition | None
) -> tuple[SearchResults | None, str | None]:
    if not _SEARCHES.acquire(timeout=SECONDS_OF_WAITING):
        return None, f"{_SEARCHES_AT_ONCE} searches are already running: try again in a moment"
    try:
        return search(logs, SearchPattern(q, regex), start), None
    except UserError as error:
        return None, str(error)
    finally:
        _SEARCHES.release()


@router.get("/new")
def new_lines(run: AskedFolder, file: Name, begin: Annotated[int, Query(alias="from", ge=0, lt=1 << 53)]) -> Response:
    """Whole lines that were written since a byte, for whoever follows a log; `more`: there are more of them already."""
    page = page_from(_asked_log(run, file), begin)
    lines = [{"number": line.number, "text": line.text, "trouble": line.is_trouble} for line in page.lines]
    told = {"lines": lines, "begin": page.begin, "end": page.end, "more": not page.is_last}
    return JSONResponse(told, headers={"Cache-Control": "no-store"})


@router.get("/raw")
def raw(run: AskedFolder, file: Name) -> Response:
    """A log as it is now."""
    log = _asked_log(run, file)
    opened, problem = readable(log.open)
    if opened is None:
        raise HTTPException(404, f"{file} cannot be read: {problem}")
    name = quote(f"{run.name}-{run.run_id}-{log.name.rpartition('/')[2]}", safe="")
    size = os.fstat(opened.fileno()).st_size
    headers = {"Content-Disposition": f"attachment; filename*=utf-8''{name}", "Content-Length": str(size)}
    return StreamingResponse(_content(opened, size), media_type="text/plain; charset=utf-8", headers=headers)


def _content(opened: BinaryIO, size: int) -> Iterator[bytes]:
    """At most this many bytes of a log, which may grow or be truncated meanwhile."""
    with opened:
        while size > 0 and (chunk := opened.read(min(size, _CHUNK_BYTES))):
            size -= len(chunk)
            yield chunk


def _asked_log(run: AskedFolder, name: str) -> LogFile:
    log = find_log(run, name)
    if log is None:
        raise HTTPException(404, f"run {run.name}/{run.run_id} has no log {name}")
    return log
