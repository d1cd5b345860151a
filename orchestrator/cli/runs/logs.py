"""`orchestrator logs`: what the processes of a run printed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import chain
from typing import Annotated

import typer

from orchestrator.api.starts.run_sentences import label
from orchestrator.cli.common import AsJson, RunName, RunsDir, print_json
from orchestrator.errors import UserError
from orchestrator.launch.logs import LogFollower
from orchestrator.launch.runs import find_run
from orchestrator.launch.states.run_states import status_of
from orchestrator.run_directory.rundir import RunDir, default_runs_dir

_POLL_SECONDS = 0.2
_SECONDS_BETWEEN_LOOKS = 2.0
_MORE_SECONDS_ON_A_CLUSTER = 8.0


def command(
    run_name: RunName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the logs as they grow, across resumes.")
    ] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank.")] = None,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Only the last N lines of each log.", show_default=False)
    ] = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the logs of a run: the launcher's and every rank's, each line with its rank in front. With --json they are
    a single list; with -f as well, one object per line.

    \b
    Example:
      orchestrator logs gpt-small -f
      orchestrator logs 3f9a --rank 3 -n 50
    """
    run = find_run(run_name, runs_dir or default_runs_dir())
    if rank is not None and not run.rank_log(rank).exists() and not follow:
        raise UserError(f"run {label(run)} has no log of rank {rank}", code="missing_log")
    follower = LogFollower(run, rank, lines)
    form = _as_object if as_json else _plain if rank is not None else _labelled
    if follow:
        _follow(run, follower, form, quiet=as_json)
    elif as_json:
        print_json([{"log": log, "line": line} for log, line in chain.from_iterable(iter(follower.poll, []))])
    elif not _print(follower, form) and lines != 0:
        typer.echo(f"run {label(run)} has no logs yet: {status_of(run).describe()}", err=True)


def _as_object(log: str, line: str) -> str:
    return json.dumps({"log": log, "line": line})


def _plain(log: str, line: str) -> str:
    return line


def _labelled(log: str, line: str) -> str:
    return f"[{log}] {line}"


def _print(follower: LogFollower, form: Callable[[str, str], str]) -> bool:
    """Print all new lines; returns whether there were any."""
    found = False
    while new := follower.poll():
        found = True
        for log, line in new:
            typer.echo(form(log, line))
    return found


def _follow(run: RunDir, follower: LogFollower, form: Callable[[str, str], str], *, quiet: bool) -> None:
    """Print until the run has completed; one that stopped may be continued, so it is waited for."""
    waiting = False
    looked = 0.0
    while True:
        _print(follower, form)
        if time.monotonic() - looked > _SECONDS_BETWEEN_LOOKS:
            looked = time.monotonic()
            status = status_of(run)
            if status.state == "completed":
                _print(follower, form)
                return
            if not status.is_live and not waiting and not quiet:
                ahead = "its start" if status.state == "queued" else "a resume"
                typer.echo(f"run {label(run)} does not run: {status.describe()}; waiting for {ahead}, Ctrl-C leaves")
            waiting = not status.is_live
            if status.job is not None:  # each look asks the scheduler
                looked += _MORE_SECONDS_ON_A_CLUSTER
        time.sleep(_POLL_SECONDS)
