"""Submitting a run to its cluster and telling what was asked for: what `submit` and `resume` share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from orchestrator.api.plan_rows import making_line
from orchestrator.cli.common import print_json, warn
from orchestrator.cli.run_start import label
from orchestrator.cluster_profiles import known_profiles, load_profile
from orchestrator.data.preparation import Source
from orchestrator.errors import OrchestratorError, PerhapsSubmitted, UserError
from orchestrator.executors.slurm.client import cancel
from orchestrator.launch.cluster.preparation import data_options, submit_preparation, to_be_made
from orchestrator.launch.cluster.submission import place_of, submit_run
from orchestrator.launch.runs import find_run
from orchestrator.launch.scripts.sbatch import sbatch_options
from orchestrator.launch.start_checks import refuse_without_checkpoint
from orchestrator.launch.states.run_states import RunStatus, status_of
from orchestrator.run_directory.rundir import RunDir, in_command
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec

ID_OF_THE_DATA_JOB = "DATA_JOB"
"""Stands in a dry run for what is known after the submission only."""


def cluster_of(job: JobSpec) -> ClusterSpec:
    """The profile of the job's cluster; where it names none, the only one there is. Raises UserError."""
    return load_profile(job.launch.cluster or only_cluster())


def only_cluster() -> str:
    """The name of the only profile there is, for a job that names none. Raises UserError."""
    known = list(known_profiles())
    if len(known) == 1:
        return known[0]
    if known:
        raise UserError(f"which cluster? Say it with --cluster or launch.cluster: {', '.join(known)}")
    raise UserError(
        "there is no cluster profile yet: write one on a login node with `orchestrator cluster init`, "
        "or train on this machine with `orchestrator run`"
    )


def jobs_before(names: Sequence[str], runs_dir: Path) -> tuple[str, ...]:
    """Ids of the jobs of runs that must have completed first; for one that has completed already, none.

    Raises UserError for a run that is not going to complete.
    """
    ids = []
    for name in names:
        status = status_of(find_run(name, runs_dir))
        if status.state == "completed":
            continue
        if status.job is None or not status.is_active:
            raise UserError(
                f"--after {name}: run {label(status.run)} is no job on a cluster that will complete "
                f"({status.describe()}): submit or resume it first"
            )
        ids.append(status.job.job_id)
    return tuple(ids)


def submit_and_tell(
    run: RunDir, job: JobSpec, cluster: ClusterSpec, *, from_scratch: bool, after: tuple[str, ...], as_json: bool
) -> None:
    """Submit a run, after a job that makes the data sets that it lacks, and say so."""
    refuse_without_checkpoint(run, from_scratch=from_scratch)
    missing = to_be_made(job)
    if not as_json:
        if missing:
            typer.echo(describe_preparation(run, job, cluster, missing))
        typer.echo(describe_request(run, job, cluster, after))
    place = place_of(run, job, copy=True)
    data_job_id = submit_preparation(run, job, cluster, place, missing, warn) if missing else None
    try:
        job_id = submit_run(
            run, job, cluster, place, from_scratch=from_scratch, after=after, data_job_id=data_job_id, warn=warn
        )
    except (OrchestratorError, OSError) as error:
        if data_job_id is not None:
            _without_training(data_job_id, error)
        raise
    if as_json:
        print_json({**status_of(run).to_json(), "job_id": job_id})
        return
    if data_job_id is not None:
        typer.echo(f"the data is made by job {data_job_id}; its output goes to {run.data_log}")
    typer.echo(f"submitted run {label(run)} as job {job_id} on {cluster.name}; it is in {run.path}")
    typer.echo(f"      follow it with: orchestrator logs {in_command(run)} -f")


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
            f"{error}\n      {there} still, and could not be taken out ({failure}): scancel {data_job_id}"
        ) from error


def describe_request(run: RunDir, job: JobSpec, cluster: ClusterSpec, after: tuple[str, ...]) -> str:
    """What SLURM is asked for, for a person."""
    quiet = ("--job-name", "--output", "--open-mode", "--ntasks")
    shown = [option for option in sbatch_options(job, cluster, run, after) if not option.startswith(quiet)]
    return f"asking {cluster.name} for: {' '.join(shown)}"


def describe_preparation(run: RunDir, job: JobSpec, cluster: ClusterSpec, missing: Sequence[Source]) -> str:
    """What SLURM is asked for to make data sets, for a person."""
    quiet = ("--job-name", "--output", "--open-mode", "--ntasks", "--dependency")
    shown = [option for option in data_options(job, cluster, run, missing) if not option.startswith(quiet)]
    made = ", ".join(source.entry.path for source in missing)
    return f"{making_line(len(missing))}: {made}\nasking {cluster.name} for: {' '.join(shown)}"


def describe_active(status: RunStatus, as_json: bool) -> None:
    """Say that the run is on its way already."""
    if as_json:
        print_json(status.to_json())
        return
    typer.echo(
        f"run {label(status.run)} is on its way already ({status.describe()}); nothing was submitted.\n"
        f"      Follow it with `orchestrator logs {in_command(status.run)} -f`, or start another with --new."
    )
