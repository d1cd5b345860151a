"""Submitting a job or a run to its cluster, and saying what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from orchestrator.api.plan_rows import layout_line, making_line
from orchestrator.api.planned_job import PlannedJob, judge_loaded
from orchestrator.api.starts.continuation import (
    NoStart,
    StartOptions,
    begin_run,
    needs_no_start,
    run_continued,
    take_changes,
)
from orchestrator.api.starts.data_preparation import check_sources
from orchestrator.api.starts.reporter import Reporter
from orchestrator.api.starts.run_sentences import label
from orchestrator.api.starts.start_warnings import ON_A_CLUSTER, check_start
from orchestrator.api.targets import TargetOptions
from orchestrator.cluster_profiles import load_profile
from orchestrator.data.source_survey import Source, to_be_made
from orchestrator.errors import UserError
from orchestrator.launch.code.snapshot import place_of
from orchestrator.launch.continuation import Continuation
from orchestrator.launch.executor_protocol import Executor, Start, executor_of, submit
from orchestrator.launch.runs import find_run, taken_back
from orchestrator.launch.start_checks import refuse_without_checkpoint
from orchestrator.launch.states.run_states import status_of
from orchestrator.profile_files import known_profiles
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir, in_command
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob


class Request(NamedTuple):
    """A submission, before anything was made or submitted."""

    found: Continuation | None
    """The run that it continues."""
    judged: PlannedJob
    missing: list[Source]
    """Data sets that another job makes first."""
    before: tuple[str, ...]
    """Ids of the jobs that it waits for."""


class Submitted(NamedTuple):
    """A run in the queue."""

    run: RunDir
    job_id: str


def with_cluster(loaded: LoadedJob, named: TargetOptions) -> TargetOptions:
    """The names with which a job was loaded; where neither they nor the job say a cluster, with the only one there is,
    if their executor needs one. Raises UserError where it is not the only one.
    """
    is_named = loaded.job.launch.cluster is not None
    return named if is_named or not executor_of(loaded.job).has_clusters else TargetOptions(only_cluster())


def requested(
    loaded: LoadedJob,
    named: TargetOptions,
    folder: Path,
    options: StartOptions,
    reporter: Reporter,
    *,
    after: Sequence[str],
    strict: bool,
) -> Request:
    """What would be submitted of a job, behind the runs `after`. Raises UserError with everything that stops it."""
    judged = judge_loaded(loaded, named, runs_dir=folder)
    judged.require(strict=False)  # before anybody is asked anything
    found = run_continued(loaded, folder, options, reporter)
    if saved := () if found is None or options.from_scratch else committed(found.run):
        judged = judge_loaded(loaded, named, runs_dir=folder, saved=saved)
    judged.require(strict=strict)
    return Request(found, judged, check_sources(judged.plan), jobs_before(after, folder))


def submit_job(
    request: Request, loaded: LoadedJob, folder: Path, options: StartOptions, reporter: Reporter
) -> Submitted | NoStart:
    """Find or make the run of a job, and submit it; NoStart where it is on its way or has completed. A run that was
    made for nothing is gone then.
    """
    found, judged, from_scratch = request.found, request.judged, options.from_scratch
    is_new = found is None
    if found is None:
        check_start(judged.verdict, ON_A_CLUSTER, allowed=options.allow_warnings, warn=reporter.warn)
        found, is_new = begin_run(loaded, folder, new=options.new)
    run, status = found.run, status_of(found.run)
    if no_start := needs_no_start(found, status, is_on_its_way=status.is_active, from_scratch=from_scratch):
        return no_start
    if not is_new:
        check_start(judged.verdict, ON_A_CLUSTER, allowed=options.allow_warnings, warn=reporter.warn)
        refuse_without_checkpoint(run, from_scratch=from_scratch)
    with taken_back(run, is_new, by_ctrl_c=False):
        take_changes(found, loaded.text, reporter, from_scratch=from_scratch)
        reporter.say(f"{'new' if is_new else 'continuing'} run {label(run)}: {layout_line(judged.plan)}")
        job_id = submit_and_tell(
            run, found.job, judged.cluster, reporter, from_scratch=from_scratch, after=request.before
        )
    return Submitted(run, job_id)


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
        raise UserError(
            f"which cluster? Name it with --cluster or launch.cluster: {', '.join(known)}", code="cluster_not_named"
        )
    raise UserError(
        "there is no cluster profile yet: create one on a login node with `orchestrator cluster init`, "
        "or train on this machine with `orchestrator run`",
        code="no_cluster_profile",
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
                f"--after {name}: run {label(status.run)} is not a cluster job that will complete "
                f"({status.describe()}): submit or resume it first",
                code="run_will_not_complete",
            )
        ids.append(status.job.job_id)
    return tuple(ids)


def submit_and_tell(
    run: RunDir,
    job: JobSpec,
    cluster: ClusterSpec | None,
    reporter: Reporter,
    *,
    from_scratch: bool,
    after: tuple[str, ...],
) -> str:
    """Submit a run, after a job that makes the data sets that it lacks, and say so; returns the id of its job."""
    refuse_without_checkpoint(run, from_scratch=from_scratch)
    chosen = executor_of(job)
    start = Start(job, place_of(run, job, copy=False), cluster, from_scratch, after, to_be_made(job))
    reporter.say(described(chosen, start))
    submitted = submit(chosen, replace(start, place=place_of(run, job)), reporter.warn)
    if submitted.data_job_id is not None:
        reporter.say(f"the data is made by job {submitted.data_job_id}; its output goes to {run.data_log}")
    reporter.say(f"submitted run {label(run)} as job {submitted.job_id} on {start.where}; it is in {run.path}")
    reporter.say(f"      follow it with: orchestrator logs {in_command(run)} -f")
    return submitted.job_id


def described(chosen: Executor, start: Start) -> str:
    """What an executor is asked for, for a person, and which data sets are made first."""
    made = ", ".join(source.entry.path for source in start.missing)
    return (f"{making_line(len(start.missing))}: {made}\n" if made else "") + chosen.describe(start)
