"""Submitting a run to its cluster and telling what was asked for: what `submit` and `resume` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from orchestrator.api.plan_rows import making_line
from orchestrator.cli.common import print_json, warn
from orchestrator.cli.run_start import label
from orchestrator.cluster_profiles import known_profiles, load_profile
from orchestrator.data.preparation import to_be_made
from orchestrator.errors import UserError
from orchestrator.launch.executor import Executor, Start, executor_of
from orchestrator.launch.runs import find_run
from orchestrator.launch.snapshot import place_of
from orchestrator.launch.start_checks import refuse_without_checkpoint
from orchestrator.launch.states.run_states import RunStatus, status_of
from orchestrator.run_directory.rundir import RunDir, in_command
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec


def cluster_of(job: JobSpec) -> ClusterSpec | None:
    """The profile of the job's cluster; where it names none, the only one there is; None where its executor needs none.
    Raises UserError.
    """
    if not executor_of(job).has_clusters:
        return None
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
    run: RunDir, job: JobSpec, cluster: ClusterSpec | None, *, from_scratch: bool, after: tuple[str, ...], as_json: bool
) -> None:
    """Submit a run, after a job that makes the data sets that it lacks, and say so."""
    refuse_without_checkpoint(run, from_scratch=from_scratch)
    chosen = executor_of(job)
    start = Start(job, place_of(run, job, copy=False), cluster, from_scratch, after, to_be_made(job))
    if not as_json:
        typer.echo(described(chosen, start))
    submitted = chosen.submit(replace(start, place=place_of(run, job)), warn)
    if as_json:
        print_json({**status_of(run).to_json(), "job_id": submitted.job_id})
        return
    if submitted.data_job_id is not None:
        typer.echo(f"the data is made by job {submitted.data_job_id}; its output goes to {run.data_log}")
    typer.echo(f"submitted run {label(run)} as job {submitted.job_id} on {start.where}; it is in {run.path}")
    typer.echo(f"      follow it with: orchestrator logs {in_command(run)} -f")


def described(chosen: Executor, start: Start) -> str:
    """What an executor is asked for, for a person, and which data sets are made first."""
    made = ", ".join(source.entry.path for source in start.missing)
    return (f"{making_line(len(start.missing))}: {made}\n" if made else "") + chosen.describe(start)


def describe_active(status: RunStatus, as_json: bool) -> None:
    """Say that the run is on its way already."""
    if as_json:
        print_json(status.to_json())
        return
    typer.echo(
        f"run {label(status.run)} is on its way already ({status.describe()}); nothing was submitted.\n"
        f"      Follow it with `orchestrator logs {in_command(status.run)} -f`, or start another with --new."
    )
