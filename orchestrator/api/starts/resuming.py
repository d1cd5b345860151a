"""Continuing a run where it ran before, with its spec or a changed one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator.api.planned_job import plan_loaded
from orchestrator.api.starts.continuation import NoStart, StartOptions
from orchestrator.api.starts.data_preparation import check_sources
from orchestrator.api.starts.previous_launch import wait_for_previous
from orchestrator.api.starts.reporter import Reporter
from orchestrator.api.starts.run_sentences import label
from orchestrator.api.starts.spec_changes import check_length, describe_changes, refuse, samples_again
from orchestrator.api.starts.start_warnings import HERE, ON_A_CLUSTER, check_start, verdict_on
from orchestrator.api.starts.submission import cluster_of
from orchestrator.errors import RunIsHeld, UserError
from orchestrator.kernel_selection.changes import diff_jobs
from orchestrator.launch.continuation import Continuation
from orchestrator.launch.runs import add_generation, written_with
from orchestrator.launch.start_checks import (
    check_installed,
    check_startable,
    refuse_imported,
    refuse_without_checkpoint,
)
from orchestrator.launch.states.run_states import RunStatus, status_of
from orchestrator.run_directory.rundir import RunDir, in_command
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob, dump_resolved, load_job, load_resolved, load_text


class Resumption(NamedTuple):
    """What is to be started."""

    job: JobSpec
    cluster: ClusterSpec | None
    """Where; None for this machine."""


def resumption(
    run: RunDir, files: Sequence[Path], overrides: Sequence[str], options: StartOptions, reporter: Reporter
) -> Resumption | NoStart:
    """What a run continues with, once everything that hinders it was looked for; its changed spec, where `files` or
    `overrides` are given, is the run's from then on. NoStart where it has completed.

    Raises UserError with what hinders it; what was refused has changed nothing.
    """
    refuse_imported(run)
    old = _spec_of(run)
    changed = _changed_job(run, old, files, overrides)
    changes = diff_jobs(old, changed.job) if changed else []
    if changed is not None and changes:
        reporter.say(describe_changes(changes))
        if not options.from_scratch and (repeated := samples_again(run, changed.job)) is not None:
            reporter.say(repeated)
        refuse(changes, options.allow_changes, another=lambda: _another(run, files, overrides))
        check_sources(plan_loaded(changed))
    wait_for_previous(run, reporter)
    status = status_of(run)
    if status.state == "completed" and not changes and not options.from_scratch:
        return NoStart(Continuation(run, old), status, "completed")
    job = changed.job if changed else old
    cluster = _place_of(run, job, status, options, reporter)
    if changed is not None and changes:  # what was refused has changed nothing
        if not options.from_scratch:
            check_length(run, changed.job, reporter)
        add_generation(run, changed.job, changed.text if files else written_with(run, overrides))
    reporter.say(f"resuming run {label(run)} in {run.path} ({status.describe()})")
    if cluster is None:
        check_installed(job)
    return Resumption(job, cluster)


def _spec_of(run: RunDir) -> JobSpec:
    """The spec that a run goes on with. Raises UserError with the way out where it cannot be read."""
    path = run.resolved()
    try:
        return load_resolved(path)
    except UserError as error:
        start = shlex.join(["--new", "--runs-dir", str(run.path.parent.parent)])
        raise UserError(
            f"run {label(run)} cannot be continued: {str(error).splitlines()[0]}.\n"
            f"      Restore that file, or start another run at iteration 0 with `orchestrator run JOB.yaml {start}`; "
            f"{run.job_yaml} is its job as it was written.",
            code="unreadable_stored_spec",
        ) from error


def _place_of(
    run: RunDir, job: JobSpec, status: RunStatus, options: StartOptions, reporter: Reporter
) -> ClusterSpec | None:
    """The cluster that the job starts on, None for this machine; it is where the run was. Raises what hinders it."""
    if status.is_active and status.job is not None:
        raise RunIsHeld(
            f"run {label(run)} is already under way ({status.describe()}).\n"
            f"      Follow it with `orchestrator logs {in_command(run)} -f`, or stop it with "
            f"`orchestrator cancel {in_command(run)}`."
        )
    if status.job is None:
        check_startable(run, job, from_scratch=options.from_scratch)
    else:
        refuse_without_checkpoint(run, from_scratch=options.from_scratch)
    saved = () if options.from_scratch else status.checkpoints
    cluster = None if status.job is None else cluster_of(job)
    verdict = verdict_on(job, cluster, run.path.parent.parent, saved)
    stopping = HERE if cluster is None else ON_A_CLUSTER
    check_start(verdict, stopping, allowed=options.allow_warnings, warn=reporter.warn)
    return cluster


def _changed_job(run: RunDir, old: JobSpec, files: Sequence[Path], overrides: Sequence[str]) -> LoadedJob | None:
    """The spec to continue with, when files or overrides were given. Raises SpecError when it is wrong."""
    if files:
        return load_job(files, overrides)
    if overrides:
        return load_text(dump_resolved(old), str(run.resolved()), overrides)
    return None


def _another(run: RunDir, files: Sequence[Path], overrides: Sequence[str]) -> str:
    """The command that trains the changed spec as another run."""
    words = [*map(str, files or [run.resolved()]), *(word for each in overrides for word in ("--set", each))]
    start = "submit" if status_of(run).job is not None else "run"
    return shlex.join(["orchestrator", start, *words, "--new", "--runs-dir", str(run.path.parent.parent)])
