"""`orchestrator list`: the runs of a folder."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, print_json
from orchestrator.cli.running import RunsDir, ago, aligned
from orchestrator.errors import UserError
from orchestrator.launch.runs import all_runs, cell_of, default_runs_dir
from orchestrator.launch.states import RunStatus, last_iteration, statuses_of
from orchestrator.spec.loading import load_resolved
from orchestrator.spec.words import shorten


def command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only the runs of this job.")] = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the latest last: state, progress, losses.

    \b
    Example:
      orchestrator list
      orchestrator list gpt-small --json
    """
    folder = runs_dir or default_runs_dir()
    statuses = statuses_of([run for run in all_runs(folder) if name in (None, run.name)])
    if as_json:
        print_json([{**status.to_json(), "cell": cell_of(status.run)} for status in statuses])
    elif statuses:
        cells = [cell_of(status.run) for status in statuses]
        header = ["NAME", "RUN", "STATE", "ITERATION", "LOSS", "VALIDATION", "CHECKPOINT", "AGE"]
        rows = [header, *(_row(status) for status in statuses)]
        if any(cells):
            shown = ["CELL", *(shorten(cell, 40) if cell else "-" for cell in cells)]
            rows = [[*row[:2], cell, *row[2:]] for row, cell in zip(rows, shown, strict=True)]
        typer.echo(aligned(rows))
    else:
        typer.echo(f"no runs{f' of {name}' if name else ''} in {folder}")


def _row(status: RunStatus) -> list[str]:
    state = status.state if status.cause in (None, status.state) else f"{status.state} ({status.cause})"
    if status.is_active and status.job is not None:
        state = f"{status.state} (job {status.job.job_id})"
    return [
        status.run.name,
        status.run.run_id,
        state,
        "-" if status.state == "imported" else f"{status.iteration or 0}/{_total(status)}",
        _number(status, "train/loss"),
        _number(status, "validation/loss"),
        str(status.checkpoints[-1].iteration) if status.checkpoints else "-",
        ago(time.time() - status.created) if status.created else "-",
    ]


def _total(status: RunStatus) -> str:
    """Steps in all; one damaged run must not hide the others."""
    try:
        return str(last_iteration(load_resolved(status.run.resolved()), status.checkpoints))
    except UserError:
        return "?"


def _number(status: RunStatus, key: str) -> str:
    return f"{status.values[key]:.4f}" if key in status.values else "-"
