"""`orchestrator run`: train a job."""

from __future__ import annotations

import typer

from orchestrator.api.planned_job import judge_here, plan_loaded
from orchestrator.cli.common import AsJson, JobFiles, Overrides, RunsDir
from orchestrator.cli.data_preparation import check_sources, prepare_first
from orchestrator.cli.jobs.preflight import HERE, AllowWarnings, check_start
from orchestrator.cli.run_start import Detach, FromScratch, check_installed, label, start, wait_for_previous
from orchestrator.cli.runs.starts.continuation import (
    AllowChanges,
    New,
    begin_run,
    needs_no_start,
    run_continued,
    take_changes,
)
from orchestrator.launch.continuation import Continuation
from orchestrator.launch.processes.stop_request import sigterm_as_ctrl_c
from orchestrator.launch.runs import taken_back
from orchestrator.launch.start_checks import check_startable, refuse_missing
from orchestrator.launch.states.run_states import RunStatus, status_of
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.checkpoints.pretrained import find_weights
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
    """Train a job here, under torchrun. The same spec again continues its run, and so does one with edits in safe keys
    only. After other edits nothing starts without --new or --allow-changes. Ctrl-C saves and stops cleanly. Missing
    data sets are made first, from the text that the spec names.

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
    found = run_continued(
        loaded, folder, new=new, allow_changes=allow_changes, from_scratch=from_scratch, as_json=as_json
    )
    is_new = False
    if found is None:
        if job.checkpoint.pretrained is not None:
            find_weights(job.checkpoint.pretrained, folder)
        check_start(judge_here(loaded, plan, folder), HERE, allowed=allow_warnings)
        prepare_first(jobs, overrides or [], job, as_json)
        found, is_new = begin_run(loaded, folder, new=new)
    run, job = found.run, found.job
    said = f"new run {label(run)} in {run.path}"
    if not is_new:
        status = _before(found, from_scratch=from_scratch, as_json=as_json)
        if status is None:
            return
        said = f"continuing run {label(run)} in {run.path} ({status.describe()})"
    try:
        with taken_back(run, is_new, by_ctrl_c=True):
            check_startable(run, job, from_scratch=from_scratch)
            if not is_new:
                saved = () if from_scratch else committed(run)
                check_start(judge_here(loaded, plan, folder, saved), HERE, allowed=allow_warnings)
                take_changes(found, loaded.text, from_scratch=from_scratch, as_json=as_json)
            if not as_json:
                typer.echo(said)
            code = start(run, job, from_scratch=from_scratch, detach=detach, as_json=as_json)
    except KeyboardInterrupt:
        if not run.path.exists():
            typer.echo(f"stopped before it started; run {label(run)} is gone again", err=True)
        raise
    raise typer.Exit(code)


def _before(found: Continuation, *, from_scratch: bool, as_json: bool) -> RunStatus | None:
    """How a run stands that is to go on, once its start before has ended; None where it needs no other."""
    wait_for_previous(found.run, quiet=as_json)
    status = status_of(found.run)
    submitted = status.is_active and status.job is not None
    if needs_no_start(found, status, is_on_its_way=submitted, from_scratch=from_scratch, as_json=as_json):
        return None
    return status
