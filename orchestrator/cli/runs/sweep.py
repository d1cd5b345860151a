"""`orchestrator sweep`: many runs of one job."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.common import AllowWarnings, AsJson, Overrides, RunsDir, aligned, folder_to_read, print_json
from orchestrator.cli.runs.starts.options import AllowChanges, New
from orchestrator.cli.runs.sweeps.search import (
    continue_trial,
    go_on_searching,
    retry_trials,
    show_continuation,
)
from orchestrator.cli.runs.sweeps.start import (
    as_record,
    begin,
    cancel_cells,
    check_cells,
    check_room,
    cluster_of,
    conclude,
    interrupts_of_a_start,
    last_submission,
)
from orchestrator.cli.runs.sweeps.sweep_run import SweepOptions, start_sweep
from orchestrator.cli.runs.sweeps.tables import (
    STAY_DELETED,
    check_metric,
    csv_text,
    follow,
    results_table,
    status_table,
    summary,
    what_is_retried,
    what_matters,
)
from orchestrator.cluster_profiles import load_profile
from orchestrator.errors import UserError
from orchestrator.profile_files import profile_file
from orchestrator.run_directory.labels import read_labels
from orchestrator.run_directory.rundir import default_runs_dir
from orchestrator.spec.loading import load_resolved
from orchestrator.sweeps.cell_starts import start_of
from orchestrator.sweeps.ledger import SweepDir, all_sweeps, find_sweep
from orchestrator.sweeps.states import (
    STARTED_BY_RETRY,
    cell_statuses,
    check_scheduler,
    counts,
    left_statuses,
    metric_of,
    ranked,
)

app = typer.Typer(
    help="Start, watch and compare many runs of one job.",
    epilog="Example: orchestrator sweep run lr.yaml --dry-run",
    no_args_is_help=True,
)

SweepFiles = Annotated[
    list[Path],
    typer.Argument(metavar="SWEEP.yaml...", help="A job with a `sweep:` section, or a sweep over a `base`."),
]
SweepName = Annotated[str, typer.Argument(metavar="SWEEP", help="Name of a sweep, or its directory.")]
MaxParallel = Annotated[
    int | None,
    typer.Option("--max-parallel", metavar="N", min=1, help="At most N cells at once.", show_default=False),
]
Local = Annotated[bool, typer.Option("--local", help="Run the cells on this machine, one after the other.")]
ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME|FILE", help="Cluster profile (name or file), instead of launch.cluster."),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Of cells that run on this machine: return at once.")]


@app.command("run")
def run_(
    files: SweepFiles,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cells and the batch scripts; start none.")
    ] = False,
    max_parallel: MaxParallel = None,
    local: Local = False,
    cluster: ClusterName = None,
    detach: Detach = False,
    new: New = False,
    deleted: Annotated[bool, typer.Option("--deleted", help="Also start deleted cells, at iteration 0.")] = False,
    allow_changes: AllowChanges = False,
    allow_warnings: AllowWarnings = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Start every cell of a sweep that is not done, queued or running and has not failed, as one SLURM array or here.
    If you add a value and run it again, only the new cells start. After edits in safe keys of the job, its cells
    continue with them. After other edits, nothing starts without --new or --allow-changes.

    \b
    Example:
      orchestrator sweep run lr.yaml --cluster juwels --max-parallel 8
      orchestrator sweep run lr.yaml --dry-run
      orchestrator sweep run lr.yaml --local
    """
    asked = SweepOptions(dry_run, max_parallel, local, cluster, detach, new, allow_changes, allow_warnings, deleted)
    start_sweep(files, overrides, (), asked, runs_dir, as_json)


@app.command("retry")
def retry_(
    name: SweepName,
    max_parallel: MaxParallel = None,
    local: Local = False,
    cluster: ClusterName = None,
    detach: Detach = False,
    allow_warnings: AllowWarnings = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Start only the cells that failed or are missing. Each continues from its last checkpoint.

    \b
    Example:
      orchestrator sweep retry lr
    """
    sweep = find_sweep(name, runs_dir or default_runs_dir())
    if sweep.search() is not None:
        go_on_searching(sweep, partial(retry_trials, sweep), detach=detach, as_json=as_json)
        return
    with interrupts_of_a_start() as interrupts:
        with sweep.alone():
            statuses = cell_statuses(sweep, sweep.planned())
            check_scheduler(statuses)
            again = [status for status in statuses if status.state in STARTED_BY_RETRY]
            starts = [start_of(status, load_resolved(status.status.run.resolved())) for status in again]
            last = last_submission(statuses)
            here = local or (cluster is None and last is not None and last.how == "local")
            profile = None
            if starts and not here:
                named = cluster or (last.cluster if last is not None else None)
                # One that was given by its file is known to the jobs themselves, and not by its name.
                is_known = named is not None and (cluster is not None or profile_file(named) is not None)
                profile = load_profile(named) if named is not None and is_known else cluster_of(starts[0].job)
            if starts:
                check_cells([start.job for start in starts], local=here)
                check_room(starts, profile, sweep.runs_dir, allowed=allow_warnings)
            parallel = max_parallel or (last.max_parallel if last is not None else None)
            begin(sweep, starts, profile, parallel, interrupts, local=here, as_json=as_json)
        conclude(sweep, starts, interrupts, wait=here and not detach, as_json=as_json)


@app.command("continue")
def continue_(
    name: SweepName,
    cell: Annotated[str, typer.Option("--cell", metavar="CELL", help="The cell: its name, its id or its run.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would continue, and where; start nothing.")] = (
        False
    ),
    local: Annotated[bool, typer.Option("--local", help="Train it on this machine.")] = False,
    detach: Detach = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Train a cell to its end that the search of its sweep has stopped early. It continues from its checkpoint, where
    the search trains its cells, or with --local here.

    \b
    Example:
      orchestrator sweep continue lr --cell lr=3e-4
    """
    sweep = find_sweep(name, runs_dir or default_runs_dir())
    if dry_run:
        show_continuation(sweep, cell, local=local, as_json=as_json)
        return
    go_on_searching(sweep, partial(continue_trial, sweep, cell, local=local), detach=detach, as_json=as_json)


@app.command("status")
def status_(
    name: SweepName,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update until no cell is running or waiting.")] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the progress of every cell of a sweep.

    \b
    Example:
      orchestrator sweep status lr --watch
    """
    sweep = find_sweep(name, runs_dir or default_runs_dir())
    if watch and not as_json:
        follow(sweep)
        return
    planned = sweep.planned()
    statuses = [*cell_statuses(sweep, planned), *left_statuses(sweep)]
    if as_json:
        print_json(as_record(sweep, statuses))
        return
    labels = read_labels(sweep.path)
    for what, text in (("tags", ", ".join(labels.tags)), ("note", labels.note)):
        if text:
            typer.echo(f"{what}: {text}")
    typer.echo(status_table(statuses, metric_of(planned, statuses)))
    typer.echo(summary(sweep, planned, statuses))
    if way_on := what_is_retried(sweep, statuses):
        typer.echo(way_on)
    if any(status.state == "deleted" for status in statuses):
        typer.echo(STAY_DELETED)


@app.command("results")
def results_(
    name: SweepName,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="METRIC", help="Metric to compare by.", show_default=False)
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="The worst first.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with every metric.")] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare the cells of a sweep by a metric, the best first.

    \b
    Example:
      orchestrator sweep results lr --sort validation/loss
      orchestrator sweep results lr --csv > lr.csv
    """
    sweep = find_sweep(name, runs_dir or default_runs_dir())
    planned = sweep.planned()
    statuses = [*cell_statuses(sweep, planned), *left_statuses(sweep)]
    metric = sort or metric_of(planned, statuses)
    check_metric(sort, statuses)
    rows = ranked(statuses, metric, planned.goal)
    rows = rows[::-1] if reverse else rows
    if as_json:
        print_json([row.to_json() for row in rows])
    elif as_csv:
        typer.echo(csv_text(rows), nl=False)
    else:
        typer.echo(results_table(rows, metric))
        typer.echo(what_matters(rows, metric))


@app.command("cancel")
def cancel_(
    name: SweepName,
    now: Annotated[bool, typer.Option("--now", help="End running cells at once, without waiting for a save.")] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Stop a sweep: waiting cells do not start, running cells save and stop. `sweep run` continues it.

    \b
    Example:
      orchestrator sweep cancel lr
    """
    sweep = find_sweep(name, runs_dir or default_runs_dir())
    pending, running = cancel_cells(sweep, now=now)
    if as_json:
        print_json({"cancelled": [cell.entry.id for cell in pending], "stopping": [cell.entry.id for cell in running]})
        return
    if not running and not pending:
        typer.echo(f"sweep {sweep.name}: no cell is under way")
        return
    how = "were told to end" if now else "save and stop"
    typer.echo(f"sweep {sweep.name}: {len(pending)} cells will not start, {len(running)} {how}")


@app.command("list")
def list_(
    archived: Annotated[bool, typer.Option("--archived", help="Also list archived sweeps.")] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """List the sweeps of a folder and their progress.

    \b
    Example:
      orchestrator sweep list
    """
    folder = folder_to_read(runs_dir)
    sweeps = [sweep for sweep in all_sweeps(folder) if archived or not read_labels(sweep.path).archived]
    found = [(sweep.name, *_how_far(sweep)) for sweep in sweeps]
    if as_json:
        print_json(
            [
                {"name": name, "cells": sum(states.values()), "states": states, "left": left}
                | ({} if problem is None else {"problem": problem})
                for name, states, left, problem in found
            ]
        )
    elif found:
        rows = [
            [
                name,
                str(sum(states.values())) if problem is None else "?",
                ", ".join([*_said(states), *([f"{left} left"] if left else []), *([problem] if problem else [])]),
            ]
            for name, states, left, problem in found
        ]
        typer.echo(aligned([["SWEEP", "CELLS", "STATES"], *rows]))
    else:
        typer.echo(f"no sweeps in {folder}")


def _how_far(sweep: SweepDir) -> tuple[dict[str, int], int, str | None]:
    """Its cells by state, how many left it, and why it is unreadable, if so: other sweeps are still listed."""
    try:
        return counts(cell_statuses(sweep, sweep.planned())), len(left_statuses(sweep)), None
    except UserError as error:
        return {}, 0, str(error).splitlines()[0]
    except OSError as error:
        return {}, 0, f"{error.filename}: {error.strerror}"


def _said(states: dict[str, int]) -> list[str]:
    return [f"{count} {state}" for state, count in states.items()]
