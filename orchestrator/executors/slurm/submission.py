"""Submitting a run to a SLURM cluster."""

from __future__ import annotations

from orchestrator.errors import OrchestratorError, PerhapsSubmitted
from orchestrator.executors.slurm.batch_script import render_sbatch
from orchestrator.executors.slurm.client import cancel, submit
from orchestrator.executors.slurm.preparation import submit_preparation
from orchestrator.launch.executor_protocol import Start, SubmittedIds, Warn
from orchestrator.run_directory.rundir import write_atomically
from orchestrator.spec.cluster import ClusterSpec


def submit_run(start: Start, warn: Warn) -> SubmittedIds:
    """Submit a run, behind the job that makes the data that it lacks.

    Raises UserError when SLURM refuses what is asked for and SchedulerError when it cannot be asked; the run stays as
    it was then.
    """
    data_job_id = None
    if start.missing:
        data_job_id = submit_preparation(start.run, start.job, profile(start), start.place, start.missing, warn)
    try:
        job_id = _submit(start, data_job_id, warn)
    except (OrchestratorError, OSError) as error:
        if data_job_id is not None:
            _without_training(data_job_id, error)
        raise
    return SubmittedIds(job_id, data_job_id)


def profile(start: Start) -> ClusterSpec:
    """The profile of the cluster that a run is for."""
    assert start.cluster is not None, "without a name it is the only one there is"
    return start.cluster


def _submit(start: Start, data_job_id: str | None, warn: Warn) -> str:
    """Write the run's batch script and submit it; returns the job id."""
    run = start.run
    before = (*start.after, data_job_id) if data_job_id else start.after
    script = render_sbatch(
        start.job, profile(start), start.place, from_scratch=start.from_scratch, after=before, module=start.module
    )
    write_atomically(run.batch_script, script)
    return submit(run.batch_script, warn=warn)


def _without_training(data_job_id: str, error: OrchestratorError | OSError) -> None:
    """Take the job that makes the data out of the queue after the training was not submitted. Raises PerhapsSubmitted
    where it is there still: because the training may be as well, or because it could not be taken out.
    """
    there = f"job {data_job_id}, which makes the data, is in the queue"
    if isinstance(error, PerhapsSubmitted):
        raise PerhapsSubmitted(f"{error}\n      {there}") from error
    try:
        cancel([data_job_id])
    except OrchestratorError as failure:
        raise PerhapsSubmitted(
            f"{error}\n      {there} still, and could not be removed ({failure}): scancel {data_job_id}"
        ) from error
