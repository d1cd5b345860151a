"""`orchestrator logs`: what the processes of a run printed."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, print_json
from orchestrator.cli.running import RunName, RunsDir, label
from orchestrator.errors import UserError
from orchestrator.launch.logs import LogFollower
from orchestrator.launch.runs import default_runs_dir, find_run
from orchestrator.launch.states import status_of
from orchestrator.rundir import RunDir

_POLL_SECONDS = 0.2
_SECONDS_BETWEEN_LOOKS = 2.0


def command(
    run_name: RunName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they grow, across resumes.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank.")] = None,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Only the last N lines of each log.", show_default=False)
    ] = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the logs of a run: the launcher's and every rank's, each line after its rank.

    \b
    Example:
      orchestrator logs gpt-small -f
      orchestrator logs 3f9a --rank 3 -n 50
    """
    run = find_run(run_name, runs_dir or default_runs_dir())
    if rank is not None and not run.rank_log(rank).exists() and not follow:
        raise UserError(f"run {label(run)} has no log of rank {rank}")
    follower = LogFollower(run, rank, lines)
    if as_json:
        print_json([{"log": log, "line": line} for log, line in follower.poll()])
    elif follow:
        _follow(run, follower, rank)
    else:
        _print(follower, rank)


def _print(follower: LogFollower, rank: int | None) -> None:
    for log, line in follower.poll():
        typer.echo(line if rank is not None else f"[{log}] {line}")


def _follow(run: RunDir, follower: LogFollower, rank: int | None) -> None:
    """Print until the run has completed; one that stopped may be continued, so it is waited for."""
    waiting = False
    looked = 0.0
    while True:
        _print(follower, rank)
        if time.monotonic() - looked > _SECONDS_BETWEEN_LOOKS:
            looked = time.monotonic()
            status = status_of(run)
            if status.state == "completed":
                _print(follower, rank)
                return
            if not status.is_live and not waiting:
                typer.echo(f"run {label(run)} does not run: {status.describe()}; waiting for a resume, Ctrl-C leaves")
            waiting = not status.is_live
        time.sleep(_POLL_SECONDS)
