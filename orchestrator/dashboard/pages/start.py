"""Starting a run or a sweep: a form, what it would start with all warnings, and the start."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from orchestrator.dashboard.actions import made_in, outcome_of
from orchestrator.dashboard.html import page
from orchestrator.dashboard.pages.actions import may_act, told
from orchestrator.dashboard.security import checked_form
from orchestrator.dashboard.settings import Its, Shared
from orchestrator.dashboard.starting import HERE, ON, SUBMIT, StartRequest, job_files, start_request
from orchestrator.errors import OrchestratorError
from orchestrator.profile_files import known_profiles
from orchestrator.run_directory.rundir import RunDir

router = APIRouter(prefix="/start")

_AGAIN = "run"
"""The field that names the run to start again, NAME/ID."""
_MOST_LINES = 400


@router.get("", dependencies=[Depends(may_act)])
def ask(request: Request, its: Its, run: Annotated[str, Query(max_length=400)] = "") -> Response:
    """What to start, and where."""
    return _form(request, its, {_AGAIN: run})


@router.post("")
async def preview(request: Request, its: Its) -> Response:
    """What it would be, by the plan of the job or the cells of the sweep, before it is started."""
    fields = await checked_form(its.settings, request)
    return await run_in_threadpool(_previewed, request, its, fields)


@router.post("/now")
async def start(request: Request, its: Its) -> Response:
    """Start it, and say on the page of all runs what that came to."""
    fields = await checked_form(its.settings, request)
    wanted = await run_in_threadpool(_wanted, its, fields)
    if isinstance(wanted, str):
        return _form(request, its, fields, problem=wanted)
    outcome = await run_in_threadpool(outcome_of, wanted.command(its.settings.runs_dir), wanted.folder)
    if not outcome.is_done:
        return _form(request, its, fields, problem=outcome.text)
    return told(its.settings, "/", outcome)


def _previewed(request: Request, its: Shared, fields: dict[str, str]) -> Response:
    wanted = _wanted(its, fields)
    if isinstance(wanted, str):
        return _form(request, its, fields, problem=wanted)
    outcome = outcome_of(wanted.preview(its.settings.runs_dir), wanted.folder, most_lines=_MOST_LINES)
    if not outcome.is_done:
        return _form(request, its, fields, problem=outcome.text)
    command = shlex.join(["orchestrator", *wanted.command(its.settings.runs_dir)])
    return _form(request, its, fields, preview=outcome.text, command=command)


def _wanted(its: Shared, fields: Mapping[str, str]) -> StartRequest | str:
    """What a form asks for, or why that cannot be."""
    again = _again(its, fields)
    try:
        return start_request(fields, _folder(again), again)
    except OrchestratorError as error:
        return str(error)


def _again(its: Shared, fields: Mapping[str, str]) -> RunDir | None:
    """The run that is to be started once more. Raises HTTPException (404) where there is none of that name."""
    name, _, run_id = fields.get(_AGAIN, "").partition("/")
    if not name:
        return None
    found = its.index.folder(name, run_id)
    if found is None:
        raise HTTPException(404, f"there is no run {name}/{run_id} in {its.settings.runs_dir}")
    return found


def _folder(again: RunDir | None) -> Path:
    return Path.cwd() if again is None else made_in([again])


def _form(
    request: Request,
    its: Shared,
    fields: Mapping[str, str],
    *,
    problem: str | None = None,
    preview: str | None = None,
    command: str | None = None,
) -> Response:
    again = _again(its, fields)
    folder = _folder(again)
    values: dict[str, Any] = {
        "fields": fields,
        "again": None if again is None else f"{again.name}/{again.run_id}",
        "folder": str(folder),
        "files": job_files(folder),
        "places": {
            HERE: "on this machine",
            SUBMIT: "where the job says (submit)",
            **{f"{ON}{name}": f"on {name}" for name in known_profiles(folder)},
        },
        "problem": problem,
        "preview": preview,
        "command": command,
    }
    return page(request, "start.html", values)
