"""`orchestrator list`: the runs of a folder."""

from __future__ import annotations

import time
from itertools import starmap
from typing import Annotated, Any

import typer

from orchestrator.api.starts.run_sentences import bytes_unsent
from orchestrator.cli.common import AsJson, RunsDir, aligned, print_json
from orchestrator.errors import UserError
from orchestrator.fields.formatting import shorten
from orchestrator.launch.runs import all_runs
from orchestrator.launch.states.run_states import RunStatus, last_iteration, readable_statuses
from orchestrator.quantities import age
from orchestrator.run_directory.rundir import RunDir, cell_of, default_runs_dir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved


def command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only the runs of this job.")] = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the latest last: state, progress, losses. An unreadable run does not hide the others.

    \b
    Example:
      orchestrator list
      orchestrator list gpt-small --json
    """
    folder = runs_dir or default_runs_dir()
    if not folder.is_dir() and (runs_dir is not None or folder.exists()):
        raise UserError(f"{folder} {'is not a folder' if folder.exists() else 'is not there'}: it should hold runs")
    runs = [run for run in all_runs(folder) if name in (None, run.name)]
    statuses, troubles = readable_statuses(runs)
    cells = [cell_of(run) for run in (*troubles, *(status.run for status in statuses))]
    if as_json:
        records = [*starmap(_unreadable, troubles.items()), *(status.to_json() for status in statuses)]
        print_json([{**record, "cell": cell} for record, cell in zip(records, cells, strict=True)])
    elif runs:
        header = ["NAME", "RUN", "STATE", "ITERATION", "LOSS", "VALIDATION", "CHECKPOINT", "AGE"]
        rows = [header, *starmap(_unreadable_row, troubles.items()), *(_row(status) for status in statuses)]
        if any(cells):
            shown = ["CELL", *(shorten(cell, 40) if cell else "-" for cell in cells)]
            rows = [[*row[:2], cell, *row[2:]] for row, cell in zip(rows, shown, strict=True)]
        typer.echo(aligned(rows))
    else:
        typer.echo(f"no runs{f' of {name}' if name else ''} in {folder}")


def _row(status: RunStatus) -> list[str]:
    job = _spec(status)
    state = status.state if status.cause in (None, status.state) else f"{status.state} ({status.cause})"
    if status.is_active and status.job is not None:
        state = f"{status.state} (job {status.job.job_id})"
    elif job is not None and _lacks_metrics(status, job):
        state += ", metrics unsent"
    total = "?" if job is None else _total(job, status)
    return [
        status.run.name,
        status.run.run_id,
        state,
        "-" if status.state == "imported" else f"{status.iteration or 0}/{total}",
        _number(status, "train/loss"),
        _number(status, "validation/loss"),
        str(status.checkpoints[-1].iteration) if status.checkpoints else "-",
        age(time.time() - status.created) if status.created else "-",
    ]


def _total(job: JobSpec, status: RunStatus) -> str:
    try:
        return str(last_iteration(job, status.checkpoints))
    except UserError:
        return "?"


def _unreadable(run: RunDir, error: Exception) -> dict[str, Any]:
    """A run of which no more can be told than why, for programs."""
    said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else _why(error)
    return {"run_id": run.run_id, "name": run.name, "path": str(run.path), "state": "unreadable", "message": said}


def _unreadable_row(run: RunDir, error: Exception) -> list[str]:
    return [run.name, run.run_id, f"unreadable ({_why(error)})", *["-"] * 5]


def _why(error: Exception) -> str:
    return str(error.strerror) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


def _spec(status: RunStatus) -> JobSpec | None:
    """The spec of a run; one damaged run must not hide the others."""
    try:
        return load_resolved(status.run.resolved())
    except UserError:
        return None


def _lacks_metrics(status: RunStatus, job: JobSpec) -> bool:
    """Whether the run has ended and MLflow has not all of it; where that cannot be read, as another person's, nobody
    knows.
    """
    try:
        return not status.is_active and bytes_unsent(status.run, job) > 0
    except OSError:
        return False


def _number(status: RunStatus, key: str) -> str:
    return f"{status.values[key]:.4f}" if key in status.values else "-"
