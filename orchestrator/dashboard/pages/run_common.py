"""What the pages of one run have in common: which run an address names, and the head above every section."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Query, Request, Response

from orchestrator.dashboard.actions import actions_of, housekeeping_of
from orchestrator.dashboard.html import page
from orchestrator.dashboard.rendering import segment
from orchestrator.dashboard.settings import Its
from orchestrator.review.run_summary import RunSummary
from orchestrator.run_directory.rundir import RunDir
from orchestrator.sweeps.ledger import SweepDir, sweep_dir

PREFIX = "/runs/{name}/{run_id}"

Text = Annotated[str, Query(max_length=200)]
"""A query parameter, which a page may repeat in each of its links."""

SECTIONS = {
    "": "Curves",
    "logs": "Logs",
    "events": "Events",
    "checkpoints": "Checkpoints",
    "data": "Data",
    "machines": "Machines",
    "plan": "Plan",
    "spec": "Spec",
    "code": "Code",
}
"""The sections of a run's page: the end of their address, and what they are called."""


def asked_folder(name: str, run_id: str, its: Its) -> RunDir:
    """The run directory that an address names, unread. Raises HTTPException (404) where there is none."""
    found = its.index.folder(name, run_id)
    if found is None:
        raise HTTPException(404, f"there is no run {name}/{run_id} in {its.settings.runs_dir}")
    return found


def asked_sweep_dir(name: str, its: Its) -> SweepDir:
    """The sweep of that name in the folder of the runs. Raises HTTPException (404) where there is none."""
    found = sweep_dir(name, its.settings.runs_dir)
    if not os.path.lexists(found.ledger):
        raise HTTPException(404, f"there is no sweep {name} in {its.settings.runs_dir}")
    return found


def asked_run(name: str, run_id: str, its: Its) -> RunSummary:
    """The run that an address names. Raises HTTPException (404) where there is none."""
    found = its.index.find(name, run_id)
    if found is None:
        raise HTTPException(404, f"there is no run {name}/{run_id} in {its.settings.runs_dir}")
    return found


Asked = Annotated[RunSummary, Depends(asked_run)]
AskedFolder = Annotated[RunDir, Depends(asked_folder)]


def section(request: Request, run: RunSummary, tab: str, template: str, values: Mapping[str, Any]) -> Response:
    """A section of a run's page, under its head. `tab`: a key of SECTIONS."""
    return part(
        request,
        run,
        template,
        {"sections": SECTIONS, "tab": tab, "actions": actions_of, "housekeeping": housekeeping_of, **values},
    )


def part(request: Request, run: RunSummary, template: str, values: Mapping[str, Any]) -> Response:
    """A part of a run's page that is loaded by itself."""
    return page(request, template, {"run": run, "address": address_of(run.run), **values})


def address_of(run: RunDir) -> str:
    """Where the page of a run lies."""
    return f"/runs/{segment(run.name)}/{segment(run.run_id)}"


def tag_of(*facts: object) -> str:
    """What changes with these facts, as HTTP has it."""
    return f'"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}"'


def unchanged(request: Request, tag: str) -> Response | None:
    """An answer without content where the visitor has what `tag` stands for."""
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    return Response(status_code=304, headers={"ETag": tag}) if tag in known else None
