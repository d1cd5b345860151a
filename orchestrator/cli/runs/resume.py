"""`orchestrator resume`: continue a run, with its spec or a changed one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.starts.continuation import NoStart, StartOptions
from orchestrator.api.starts.resuming import resumption
from orchestrator.api.starts.submission import submit_and_tell
from orchestrator.cli.common import AllowWarnings, AsJson, Overrides, RunName, RunsDir, print_json
from orchestrator.cli.run_start import Detach, FromScratch, start
from orchestrator.cli.runs.starts.options import tell_no_start
from orchestrator.cli.terminal import Terminal
from orchestrator.launch.processes.stop_request import sigterm_as_ctrl_c
from orchestrator.launch.runs import find_run
from orchestrator.launch.states.run_states import status_of
from orchestrator.run_directory.rundir import default_runs_dir


def command(
    run_name: RunName,
    jobs: Annotated[
        list[Path] | None, typer.Argument(metavar="[JOB.yaml...]", help="A changed spec to continue with.")
    ] = None,
    overrides: Overrides = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Accept changes that alter the course of the training.")
    ] = False,
    allow_warnings: AllowWarnings = False,
    from_scratch: FromScratch = False,
    detach: Detach = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Continue a run from its last checkpoint, where it ran before: here, or as a job on its cluster. A changed spec is
    compared with the old one first.

    \b
    Example:
      orchestrator resume gpt-small
      orchestrator resume 3f9a --set schedule.train_iters=2000 --allow-changes
      orchestrator resume 3f9a job.yaml
    """
    run = find_run(run_name, runs_dir or default_runs_dir())
    terminal = Terminal(as_json)
    options = StartOptions(False, allow_changes, allow_warnings, from_scratch)
    next_start = resumption(run, jobs or [], overrides or [], options, terminal)
    if isinstance(next_start, NoStart):
        tell_no_start(next_start, as_json)
        return
    job, cluster = next_start
    if cluster is not None:  # where it ran before
        job_id = submit_and_tell(run, job, cluster, terminal, from_scratch=from_scratch, after=())
        if as_json:
            print_json({**status_of(run).to_json(), "job_id": job_id})
        return
    with sigterm_as_ctrl_c():
        code = start(run, job, from_scratch=from_scratch, detach=detach, as_json=as_json)
    raise typer.Exit(code)
