"""`orchestrator run`: train a job."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import typer

from orchestrator.api.starts.continuation import NoStart, StartOptions
from orchestrator.api.starts.local import run_here
from orchestrator.cli.common import AllowWarnings, AsJson, JobFiles, Overrides, RunsDir
from orchestrator.cli.data_preparation import prepare_first
from orchestrator.cli.run_start import Detach, FromScratch, start
from orchestrator.cli.runs.starts.options import AllowChanges, New, tell_no_start
from orchestrator.cli.terminal import Terminal
from orchestrator.launch.processes.stop_request import sigterm_as_ctrl_c
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job


@sigterm_as_ctrl_c()
def command(
    jobs: JobFiles,
    overrides: Overrides = None,
    new: New = False,
    allow_changes: AllowChanges = False,
    allow_warnings: AllowWarnings = False,
    from_scratch: FromScratch = False,
    detach: Detach = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Train a job here, under torchrun. Running the same spec again continues its run, also after edits in safe keys
    only. After other edits, nothing starts without --new or --allow-changes. Ctrl-C saves and stops cleanly. Missing
    data sets are made first, from the text that the spec names.

    \b
    Example:
      orchestrator run job.yaml
      orchestrator run job.yaml --set schedule.train_iters=100 --new
      orchestrator run job.yaml --detach
    """
    options = StartOptions(new, allow_changes, allow_warnings, from_scratch)
    train_here(jobs, overrides or [], options, runs_dir, detach=detach, as_json=as_json)


def train_here(
    jobs: list[Path], overrides: list[str], options: StartOptions, runs_dir: Path | None, *, detach: bool, as_json: bool
) -> NoReturn:
    """Train a job from this machine, and end the command as that ends."""
    loaded = load_job(jobs, overrides)

    def train(run: RunDir, job: JobSpec) -> int:
        return start(run, job, from_scratch=options.from_scratch, detach=detach, as_json=as_json)

    done = run_here(
        loaded,
        runs_dir,
        options,
        Terminal(as_json),
        prepare=lambda: prepare_first(jobs, overrides, loaded.job, as_json),
        train=train,
    )
    if isinstance(done, NoStart):
        tell_no_start(done, as_json)
    raise typer.Exit(0 if isinstance(done, NoStart) else done)
