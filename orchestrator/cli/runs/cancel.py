"""`orchestrator cancel`: stop a run."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.api.starts.run_sentences import label, reached
from orchestrator.api.starts.stopping import stop
from orchestrator.cli.common import AsJson, RunName, RunsDir, print_json
from orchestrator.cli.terminal import Terminal
from orchestrator.launch.runs import find_run
from orchestrator.run_directory.rundir import default_runs_dir


def command(
    run_name: RunName,
    now: Annotated[bool, typer.Option("--now", help="End it at once, without waiting for a save.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until it has ended.")] = True,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Stop a run cleanly: it saves after its current step and ends. `--now` ends it at once, with only the checkpoints
    that it already has.

    \b
    Example:
      orchestrator cancel gpt-small
      orchestrator cancel 3f9a --now
    """
    run = find_run(run_name, runs_dir or default_runs_dir())
    by = "orchestrator cancel --now" if now else "orchestrator cancel"
    status, was_live, has_ended = stop(run, Terminal(as_json), now=now, wait=wait, by=by)
    if as_json:
        print_json({**status.to_json(), "was_live": was_live})
    elif not was_live:
        typer.echo(f"run {label(run)} does not run: {status.describe()}")
    elif has_ended:
        typer.echo(f"run {label(run)} {reached(status)}: {status.describe()}")
    else:
        typer.echo(f"run {label(run)} was asked to stop")
