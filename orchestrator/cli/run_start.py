"""Starting a run from the command line and telling how it went: what `run`, `resume` and `drill` share."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orchestrator.api.starts.previous_launch import wait_for_previous
from orchestrator.api.starts.run_sentences import bytes_unsent, ending, label, unsent_words
from orchestrator.cli.common import print_json, stop_printing, warn
from orchestrator.cli.data_preparation import prepare
from orchestrator.cli.terminal import Terminal
from orchestrator.launch.local.background import start_in_background
from orchestrator.launch.local.launcher import Severity, Watcher, command_elsewhere, for_the_others
from orchestrator.launch.local.restarts import launch_with_restarts
from orchestrator.launch.run_names import shown_name
from orchestrator.launch.states.run_states import last_iteration, status_of
from orchestrator.launch.terminal_watcher import watcher_for
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.exits.causes import Exit
from orchestrator.run_directory.rundir import RunDir, in_command
from orchestrator.spec.job import JobSpec

Detach = Annotated[bool, typer.Option("--detach", "-d", help="Start in the background and return at once.")]
FromScratch = Annotated[
    bool, typer.Option("--from-scratch", help="Begin at iteration 0, even if the run was started before.")
]


def start(run: RunDir, job: JobSpec, *, from_scratch: bool, detach: bool, as_json: bool) -> int:
    """Train in the foreground or the background; prints what happens and returns the command's exit code."""
    wait_for_previous(run, Terminal(as_json))
    if code := prepare([str(run.path)], job, as_json):
        return code
    if detach:
        launch_id = start_in_background(run, job, from_scratch=from_scratch)
        if as_json:
            names = {"name": run.name, "shown_name": shown_name(run)}
            started = {"run_id": run.run_id, **names, "path": str(run.path), "launch_id": launch_id}
            elsewhere = {"command_elsewhere": command_elsewhere(run, launch_id)} if job.launch.nodes > 1 else {}
            print_json({**started, **elsewhere})
            return 0
        follow = f"orchestrator logs {in_command(run)} -f"
        typer.echo(f"started run {label(run)} in the background; follow it with: {follow}")
        if job.launch.nodes > 1:
            typer.echo(for_the_others(run, launch_id))
        return 0
    total = last_iteration(job, [] if from_scratch else committed(run))

    def watcher() -> Watcher:
        return _JsonWatcher() if as_json else watcher_for(run, total, sys.stdout)

    return report(run, job, total, launch_with_restarts(run, job, from_scratch=from_scratch, watcher=watcher), as_json)


class _JsonWatcher(Watcher):
    """Under --json: standard output is for the one object at the end, and the other machines are started before."""

    def say(self, message: str, severity: Severity | None = None) -> None:
        typer.echo(message, err=True)


def report(run: RunDir, job: JobSpec, total: int, end: Exit, as_json: bool) -> int:
    """Tell how a launch ended, if anybody still listens; returns the exit code."""
    status = status_of(run)
    iteration = end.iteration if end.iteration is not None else status.iteration
    try:
        if as_json:
            print_json({**status.to_json(), "train_iters": total, "exit_code": end.code})
        else:
            typer.echo(ending(run, total, end, iteration, status), err=end.code != 0)
            # Another end leaves its metrics to a process that goes on sending them for a while.
            if end.cause in ("completed", "stopped") and (unsent := bytes_unsent(run, job)):
                warn(f"not sent: {unsent_words(run, unsent)}")
    except OSError:
        stop_printing()
    return end.code
