"""Doing something about a run or a sweep: a page that asks, and the form that it sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse

from orchestrator.api.housekeeping.deletion import cells_lost, doomed_with
from orchestrator.api.housekeeping.targets import Target
from orchestrator.dashboard.actions import (
    ACTIONS,
    HOUSEKEEPING,
    Action,
    Outcome,
    act_on_run,
    act_on_sweep,
    actions_of,
    housekeeping_of,
    present_value,
    retry_cells,
)
from orchestrator.dashboard.html import page
from orchestrator.dashboard.pages.run_common import address_of, asked_run, asked_sweep_dir
from orchestrator.dashboard.rendering import counted, segment
from orchestrator.dashboard.security import checked_form, sealed
from orchestrator.dashboard.settings import Its, Settings
from orchestrator.quantities import disk_size
from orchestrator.review.run_summary import RunSummary
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.states import STARTED_BY_RETRY, cell_statuses

router = APIRouter()

SWEEP_ACTIONS = ("archive", "delete")
"""What can be done with a sweep beside a retry."""
_RETRY_EXPLAINED = "Only the cells that failed or are missing start again, each from its last checkpoint."


@dataclass(frozen=True)
class Question:
    """What the page that asks shows. `field`: the label of a field to type into, `typed` what it begins with."""

    asks: str
    subject: str
    now: str
    explains: str
    label: str
    back: str
    field: str = ""
    typed: str = ""
    is_long: bool = False
    consequences: Sequence[str] = ()


def asked_action(name: str, run: Annotated[RunSummary, Depends(asked_run)], action: str) -> Action:
    """What an address asks for. Raises HTTPException where that cannot be done with the run (409), or at all (404)."""
    found = ACTIONS.get(action) or HOUSEKEEPING.get(action)
    if found is None:
        raise HTTPException(404, f"there is no action {action}")
    if found not in (*actions_of(run), *housekeeping_of(run)):
        raise HTTPException(409, f"{run.key} is {run.state}: there is nothing to {found.name}")
    return found


def asked_sweep(found: Annotated[SweepDir, Depends(asked_sweep_dir)]) -> SweepDir:
    """The planned sweep that a URL names. Raises HTTPException (404) where there is none."""
    if not found.is_planned:
        raise HTTPException(404, f"sweep {found.name} has no cells yet")
    return found


def may_act(its: Its) -> None:
    """Raises HTTPException (403) where this dashboard only shows."""
    if not its.settings.allows_actions:
        raise HTTPException(403, "this dashboard is read-only: start it with --allow-actions to allow actions")


async def form_of_ours(request: Request, its: Its) -> Settings:
    """Raises HTTPException (403) for a form that is not of this dashboard."""
    await checked_form(its.settings, request)
    return its.settings


async def typed_in_ours(request: Request, its: Its) -> str:
    """What stands in the field of a form of this dashboard. Raises HTTPException (403) for any other."""
    return (await checked_form(its.settings, request)).get("typed", "")


@router.get("/runs/{name}/{run_id}/actions/{action}", dependencies=[Depends(may_act)])
def ask(
    request: Request,
    its: Its,
    run: Annotated[RunSummary, Depends(asked_run)],
    action: Annotated[Action, Depends(asked_action)],
) -> Response:
    """Whether that is really meant."""
    question = Question(
        action.asks,
        run.shown_label,
        run.description,
        action.explains,
        action.label,
        address_of(run.run),
        field=action.field,
        typed=present_value(action, run.run),
        is_long=action.name == "note",
        consequences=_of_a_deletion(run.run, its) if action.name == "delete" else (),
    )
    return page(request, "confirm.html", vars(question))


@router.post("/runs/{name}/{run_id}/actions/{action}")
async def act(
    its: Its,
    typed: Annotated[str, Depends(typed_in_ours)],
    run: Annotated[RunSummary, Depends(asked_run)],
    action: Annotated[Action, Depends(asked_action)],
) -> Response:
    """Do it, and show the run with what it came to."""
    outcome = await run_in_threadpool(act_on_run, action, run.run, typed)
    return told(its.settings, address_of(run.run) if run.run.path.exists() else "/", outcome)


@router.get("/sweeps/{name}/actions/retry", dependencies=[Depends(may_act)])
def ask_to_retry(request: Request, sweep: Annotated[SweepDir, Depends(asked_sweep)]) -> Response:
    """Whether the cells are really to be started."""
    count = _retried(sweep)
    if count == 0:
        raise HTTPException(409, f"no cell of sweep {sweep.name} has failed or is missing")
    now = f"{counted(count, 'cell', 'cells')} would start"
    asks = "Retry the cells of this sweep?"
    question = Question(asks, sweep.name, now, _RETRY_EXPLAINED, "Retry", _sweep_address(sweep))
    return page(request, "confirm.html", vars(question))


@router.post("/sweeps/{name}/actions/retry")
async def retry(
    settings: Annotated[Settings, Depends(form_of_ours)], sweep: Annotated[SweepDir, Depends(asked_sweep)]
) -> Response:
    """Start them, and show the sweep with what that came to."""
    outcome = await run_in_threadpool(retry_cells, sweep)
    return told(settings, _sweep_address(sweep), outcome)


@router.get("/sweeps/{name}/actions/{action}", dependencies=[Depends(may_act)])
def ask_of_sweep(request: Request, its: Its, sweep: Annotated[SweepDir, Depends(asked_sweep)], action: str) -> Response:
    """Whether a sweep is really to be deleted or archived."""
    if action not in SWEEP_ACTIONS:
        raise HTTPException(404, f"there is no action {action}")
    now = f"with {counted(len(sweep.planned().cells), 'cell', 'cells')}"
    label, explains = action.title(), HOUSEKEEPING[action].explains
    consequences = _of_a_deletion(sweep, its) if action == "delete" else ()
    address = _sweep_address(sweep)
    question = Question(f"{label} this sweep?", sweep.name, now, explains, label, address, consequences=consequences)
    return page(request, "confirm.html", vars(question))


@router.post("/sweeps/{name}/actions/{action}")
async def act_on_it(
    settings: Annotated[Settings, Depends(form_of_ours)],
    sweep: Annotated[SweepDir, Depends(asked_sweep)],
    action: str,
) -> Response:
    """Do it, and show what it came to."""
    if action not in SWEEP_ACTIONS:
        raise HTTPException(404, f"there is no action {action}")
    outcome = await run_in_threadpool(act_on_sweep, action, sweep)
    return told(settings, _sweep_address(sweep) if sweep.path.exists() else "/sweeps", outcome)


def _of_a_deletion(target: Target, its: Its) -> list[str]:
    """How much goes to the trash, and which sweeps lose cells."""
    runs_dir = its.settings.runs_dir
    doomed = doomed_with([target], runs_dir)
    lost = sorted(cells_lost(doomed, runs_dir).items())
    sweeps = [f"Sweep {name} stays, without {number} of its cells." for name, number in lost]
    return [f"It takes {disk_size(sum(each.bytes for each in doomed))} of the disk.", *sweeps]


def _retried(sweep: SweepDir) -> int:
    return sum(cell.state in STARTED_BY_RETRY for cell in cell_statuses(sweep, sweep.planned()))


def _sweep_address(sweep: SweepDir) -> str:
    return f"/sweeps/{segment(sweep.name)}"


def told(settings: Settings, address: str, outcome: Outcome) -> Response:
    """Back to a page, by GET, so that reloading it does not do it again."""
    text = outcome.text if outcome.is_done else f"It failed. {outcome.text}"
    return RedirectResponse(f"{address}?{sealed(settings, text)}", status_code=303)
