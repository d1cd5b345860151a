"""`orchestrator list`: the runs of a folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from orchestrator.cli.common import AsJson, RunsDir, aligned, folder_to_read, print_json
from orchestrator.fields.formatting import few, shorten
from orchestrator.files.stored_files import parse_line
from orchestrator.quantities import age, disk_size
from orchestrator.review.filters.listing import matching, named_field, sorted_by, summaries_in
from orchestrator.review.filters.run_fields import Field
from orchestrator.review.query import quoted
from orchestrator.review.run_summary import RunSummary
from orchestrator.run_directory.events.labels import Labels
from orchestrator.run_directory.runs_folder import misplaced_runs

_LONGEST = 40


def command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only the runs of this name.")] = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only runs in this state, or `failed,lost`.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Only runs with this tag.")] = None,
    user: Annotated[list[str] | None, typer.Option("--user", metavar="USER", help="Only runs of this user.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only runs created since: 36h, 7d, 2 weeks, 2026-11-01."),
    ] = None,
    part: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="Only runs whose name contains this, now or earlier.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", metavar="FILTER", help='Only runs that match, e.g. "optimizer.lr > 1e-4 and loss < 3".'
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="FIELD", help="Order by a field, smallest first; -FIELD: largest first."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, metavar="N", help="At most N runs: the first with --sort, else the latest."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="FIELDS", help="Show these fields instead, e.g. name,state,lr,loss."),
    ] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Show archived runs, too.")] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the latest last: state, progress, losses. An unreadable run does not hide the others.

    Filters are those of the dashboard; all must match. Fields are those of the spec (optimizer.lr, or lr), metrics
    (loss, train/grad_norm), state, cause, name, id, user, tag, sweep, cell, step, progress, age, created and others.

    \b
    Example:
      orchestrator list
      orchestrator list gpt-small --json
      orchestrator list --state failed,lost --since 7d
      orchestrator list --where "optimizer.lr>1e-4 and loss<3" --sort loss --limit 10
      orchestrator list --tag baseline --columns name,id,lr,loss,age
    """
    folder = folder_to_read(runs_dir)
    filters = [
        *([("--state", f"state in ({', '.join(map(quoted, _listed(state)))})")] if state else []),
        *(("--tag", f"tag={quoted(each)}") for each in tag or ()),
        *([("--user", f"user in ({', '.join(map(quoted, user))})")] if user else []),
        *([("--since", f"created >= {quoted(since)}")] if since is not None else []),
        *([("--name", f"name ~ {quoted(part)}")] if part is not None else []),
        *(("--where", each) for each in where or ()),
    ]
    everything = summaries_in(folder)
    of_name = [run for run in everything if name in (None, *run.names)]
    shown = None if columns is None else [named_field(each.strip(), everything) for each in columns.split(",")]
    by = [named_field(sort.removeprefix("-"), everything)] if sort is not None else []
    runs = matching(of_name, filters, fields=[*(shown or ()), *by], archived=archived)
    runs = sorted_by(runs, sort)[:limit] if sort is not None else runs[-(limit or 0) :]
    if as_json:
        print_json([_record(run) if shown is None else {each.name: each.plain(run) for each in shown} for run in runs])
    elif runs:
        typer.echo(aligned(_table(runs) if shown is None else _chosen(runs, shown)))
    else:
        matches = "matching runs" if of_name else "runs"
        hint = "" if of_name or name is None else _meant(name, everything)
        typer.echo(f"no {matches}{f' of {name}' if name else ''} in {folder}{hint}")
    if misplaced := few(misplaced_runs(folder)):
        typer.echo(f"not listed, as a run has to be in NAME/ID: {misplaced}", err=True)


def _meant(name: str, runs: Sequence[RunSummary]) -> str:
    """What may have been meant by a name that no run has."""
    from orchestrator.spec.messages.suggestions import closest  # takes longer to import than all else

    if any(run.sweep == name for run in runs):
        return f": `orchestrator list --where sweep={name}` lists the cells of that sweep"
    near = closest(name, sorted({each for run in runs for each in run.names}))
    return f": did you mean {' or '.join(near)}?" if near else ""


def _listed(written: Sequence[str]) -> list[str]:
    """The values in `failed,lost`, of one or several options."""
    return [each.strip() for text in written for each in text.split(",")]


def _record(run: RunSummary) -> dict[str, Any]:
    """A run for programs."""
    identity = {"run_id": run.run.run_id, "name": run.run.name, "shown_name": run.title, "path": str(run.run.path)}
    more = {"sweep": run.sweep, "cell": run.cell, "disk_bytes": run.disk_bytes}
    labels = {"labels": asdict(run.labels)} if run.labels != Labels() else {}
    return {**identity, **(parse_line(run.record.encode()) or {}), **identity, **more, **labels}


def _chosen(runs: Sequence[RunSummary], fields: Sequence[Field]) -> list[list[str]]:
    """The table of the fields that were asked for."""
    rows = [[shorten(field.shown(run), _LONGEST) for field in fields] for run in runs]
    return [[field.name.upper() for field in fields], *rows]


def _table(runs: Sequence[RunSummary]) -> list[list[str]]:
    rows = [["NAME", "RUN", "STATE", "ITERATION", "LOSS", "VALIDATION", "CHECKPOINT", "DISK", "AGE"], *map(_row, runs)]
    if any(run.sweep for run in runs):
        sweeps = ["SWEEP", *(shorten(run.sweep or "-", _LONGEST) for run in runs)]
        cells = ["CELL", *(shorten(run.cell or "-", _LONGEST) for run in runs)]
        rows = [[*row[:2], *which, *row[2:]] for row, *which in zip(rows, sweeps, cells, strict=True)]
    return rows


def _row(run: RunSummary) -> list[str]:
    if not run.is_readable:
        return [run.title, run.run.run_id, f"unreadable ({run.message})", *["-"] * 6]
    state = run.state if run.cause in (None, run.state) else f"{run.state} ({run.cause})"
    if run.is_active and run.job_id is not None:
        state = f"{run.state} (job {run.job_id})"
    elif run.unsent > 0:
        state += ", metrics unsent"
    if run.labels.archived:
        state += ", archived"
    total = "?" if run.train_iters is None else run.train_iters
    return [
        run.title,
        run.run.run_id,
        state,
        f"{run.iteration}/{total}" if run.trains else "-",
        _number(run, "train/loss"),
        _number(run, "validation/loss"),
        str(run.checkpoints[-1]) if run.checkpoints else "-",
        disk_size(run.disk_bytes) if run.disk_bytes else "-",
        age(time.time() - run.created) if run.created else "-",
    ]


def _number(run: RunSummary, key: str) -> str:
    return f"{run.values[key]:.4f}" if key in run.values else "-"
