"""`orchestrator sync`: starts the program `python -m orchestrator.tracking`, which talks to the trackers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from orchestrator.api.starts.run_sentences import label
from orchestrator.cli.common import AsJson, RunsDir, folder_to_read, print_json
from orchestrator.errors import JobError, UserError
from orchestrator.launch.runs import all_runs, find_run
from orchestrator.run_directory.rundir import RunDir
from orchestrator.run_directory.trash import trashed
from orchestrator.safe_path import module_command


def command(
    run_names: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN...", help="Run ids (or their beginnings), job names or paths.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every run of the runs folder.")] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Send the data that a run's trackers are missing: after a server was unavailable, or to refill a lost store.
    Sending again changes nothing, and the run may still be running. --all also deletes the MLflow runs of deleted runs.

    \b
    Example:
      orchestrator sync gpt-small
      orchestrator sync --all
    """
    if bool(run_names) == every:
        raise UserError("name runs, or add --all for every run of the runs folder", code="no_runs")
    folder = folder_to_read(runs_dir)
    runs = all_runs(folder) if every else [find_run(name, folder) for name in run_names or []]
    runs += [RunDir(entry.path) for entry in trashed(folder) if entry.mlflow] if every else []
    records = []
    for run, record in zip(runs, send(runs), strict=True):
        records.append(record)
        if not as_json:
            typer.echo(_line(run, record), err=record["state"] == "failed")
    if as_json:
        print_json(records)
    elif not runs:
        typer.echo(f"no runs in {folder}")
    if any(record["state"] == "failed" for record in records):
        raise typer.Exit(1)


def send(runs: list[RunDir]) -> Iterator[dict[str, Any]]:
    """What the program says of each run, in order. Raises JobError when it ends before it has."""
    if not runs:
        return
    arguments = module_command("orchestrator.tracking", "--once", *(str(run.path) for run in runs))
    with subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        count = 0
        for line in program.stdout:
            count += 1
            yield json.loads(line)
    if count < len(runs):
        raise JobError(
            f"sending ended early, with exit code {program.returncode}: {count} of {len(runs)} runs were done",
            code="sending_failed",
        )


def _line(run: RunDir, record: dict[str, Any]) -> str:
    match record["state"]:
        case "sent":
            values = record["metrics"]
            done = f"{values} value{'s' if values != 1 else ''} sent" if values else "nothing new"
            return f"{label(run)}: {done}"
        case "deleted":
            return f"{record['name']}: deleted in MLflow"
        case "off":
            return f"{label(run)}: not tracked ({record['message']})"
        case _:
            return f"{record.get('name') or label(run)}: not sent: {record['message']}"
