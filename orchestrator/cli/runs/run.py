"""`orchestrator run`: train a job."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.checkpoints import find_weights
from orchestrator.cli.common import AsJson, JobFiles, Overrides, warn
from orchestrator.cli.jobs.planned import plan_loaded
from orchestrator.cli.preparing import check_sources, prepare_first
from orchestrator.cli.running import (
    Detach,
    FromScratch,
    RunsDir,
    check_installed,
    describe_completed,
    label,
    start,
    tell_of_others,
    wait_for_previous,
)
from orchestrator.cli.runs.submitting import describe_active
from orchestrator.launch.runs import attach_or_create, create_run, run_to_continue, runs_dir_of, taken_back
from orchestrator.launch.startable import check_startable, refuse_missing
from orchestrator.launch.states import status_of
from orchestrator.launch.stopping import sigterm_as_ctrl_c
from orchestrator.spec.loading import load_job


@sigterm_as_ctrl_c()
def command(
    jobs: JobFiles,
    overrides: Overrides = None,
    new: Annotated[bool, typer.Option("--new", help="Start another run although this very spec has one.")] = False,
    from_scratch: FromScratch = False,
    detach: Detach = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Train a job here, under torchrun. The same spec again continues its run. Ctrl-C saves and stops cleanly. Data
    sets that are not there are made first, from the text that the spec names.

    \b
    Example:
      orchestrator run job.yaml
      orchestrator run job.yaml --set schedule.train_iters=100 --new
      orchestrator run job.yaml --detach
    """
    loaded = load_job(jobs, overrides or [])
    plan = plan_loaded(loaded)
    job = loaded.job
    check_installed(job)
    refuse_missing(job)
    check_sources(plan)
    folder = runs_dir_of(job, runs_dir)
    if new or run_to_continue(job, folder) is None:
        if job.checkpoint.pretrained is not None:
            find_weights(job.checkpoint.pretrained, folder)
        prepare_first(jobs, overrides or [], job, as_json)
    if new:
        run, is_new = create_run(job, loaded.text, folder), True
    else:
        run, is_new = attach_or_create(job, loaded.text, folder, warn)
    said = f"new run {label(run)} in {run.path}"
    if not is_new:
        wait_for_previous(run, quiet=as_json)
        status = status_of(run)
        if status.is_active and status.job is not None:
            describe_active(status, as_json)
            return
        if status.state == "completed" and not from_scratch:
            describe_completed(run, status, as_json)
            return
        said = f"continuing run {label(run)} in {run.path} ({status.describe()})"
    try:
        with taken_back(run, is_new, by_ctrl_c=True):
            check_startable(run, job, from_scratch=from_scratch)
            if not as_json:
                typer.echo(said)
                tell_of_others(run, job, is_new, jobs, overrides or [])
            code = start(run, job, from_scratch=from_scratch, detach=detach, as_json=as_json)
    except KeyboardInterrupt:
        if not run.path.exists():
            typer.echo(f"stopped before it started; run {label(run)} is gone again", err=True)
        raise
    raise typer.Exit(code)
