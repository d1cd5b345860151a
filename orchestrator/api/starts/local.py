"""Training a job on this machine: which run it is, whether it may start, and its training to the end."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from orchestrator import errors
from orchestrator.api.planned_job import judge_here, plan_loaded
from orchestrator.api.starts.continuation import (
    NoStart,
    StartOptions,
    begin_run,
    needs_no_start,
    run_continued,
    take_changes,
)
from orchestrator.api.starts.data_preparation import check_sources, prepare_here
from orchestrator.api.starts.previous_launch import wait_for_previous
from orchestrator.api.starts.reporter import Reporter
from orchestrator.api.starts.run_sentences import ending, label
from orchestrator.api.starts.start_warnings import HERE, check_start
from orchestrator.errors import JobError, OrchestratorError, UserError
from orchestrator.launch.local.background import start_in_background
from orchestrator.launch.local.launcher import Severity
from orchestrator.launch.local.restarts import launch_with_restarts
from orchestrator.launch.runs import taken_back
from orchestrator.launch.start_checks import check_installed, check_startable, refuse_missing
from orchestrator.launch.states.run_states import last_iteration, status_of
from orchestrator.launch.watch import Lines
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.checkpoints.pretrained import find_weights
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob, dump_resolved

Trained = TypeVar("Trained")


def run_here(
    loaded: LoadedJob,
    runs_dir: Path | None,
    options: StartOptions,
    reporter: Reporter,
    *,
    prepare: Callable[[], None],
    train: Callable[[RunDir, JobSpec], Trained],
) -> Trained | NoStart:
    """Find or make the run of a job, and train it. `prepare` makes the data sets that a new run lacks, and `train`
    sees the training through; what that returns is returned. NoStart where there is nothing to train.

    Raises UserError with everything that keeps it from starting here. A run that was made for nothing is gone then.
    """
    plan = plan_loaded(loaded)
    job, from_scratch = loaded.job, options.from_scratch
    check_installed(job)
    refuse_missing(job)
    check_sources(plan)
    folder = runs_dir_of(job, runs_dir)
    found = run_continued(loaded, folder, options, reporter)
    is_new = False
    if found is None:
        if job.checkpoint.pretrained is not None:
            find_weights(job.checkpoint.pretrained, folder)
        verdict = judge_here(loaded, plan, folder)
        check_start(verdict, HERE, allowed=options.allow_warnings, warn=reporter.warn)
        prepare()
        found, is_new = begin_run(loaded, folder, new=options.new)
    run, job = found.run, found.job
    said = f"new run {label(run)} in {run.path}"
    if not is_new:
        wait_for_previous(run, reporter)
        status = status_of(run)
        submitted = status.is_active and status.job is not None
        if no_start := needs_no_start(found, status, is_on_its_way=submitted, from_scratch=from_scratch):
            return no_start
        said = f"continuing run {label(run)} in {run.path} ({status.describe()})"
    try:
        with taken_back(run, is_new, by_ctrl_c=True):
            check_startable(run, job, from_scratch=from_scratch)
            if not is_new:
                verdict = judge_here(loaded, plan, folder, () if from_scratch else committed(run))
                check_start(verdict, HERE, allowed=options.allow_warnings, warn=reporter.warn)
                take_changes(found, loaded.text, reporter, from_scratch=from_scratch)
            reporter.say(said)
            return train(run, job)
    except KeyboardInterrupt:
        if not run.path.exists():
            reporter.say(f"stopped before it started; run {label(run)} was removed again", "error")
        raise


def prepare_quietly(job: JobSpec) -> None:
    """Make the data sets that a job lacks. Raises what keeps them from being made."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as spec:
        spec.write(dump_resolved(job))
        spec.flush()
        _prepare_quietly(["--", spec.name], job)


def train_quietly(run: RunDir, job: JobSpec, reporter: Reporter, *, from_scratch: bool) -> None:
    """Train a run to its end, which `reporter` hears of. Raises JobError where it did not complete, and UserError where
    it could not start.
    """
    wait_for_previous(run, reporter)
    _prepare_quietly([str(run.path)], job)
    total = last_iteration(job, [] if from_scratch else committed(run))
    end = launch_with_restarts(run, job, from_scratch=from_scratch, watcher=lambda: _Listening(run, total, reporter))
    status = status_of(run)
    iteration = end.iteration if end.iteration is not None else status.iteration
    said = ending(run, total, end, iteration, status)
    if end.code != 0:
        raise JobError(said.removeprefix("error: "), code="run_failed")
    reporter.say(said)


def start_quietly(run: RunDir, job: JobSpec, reporter: Reporter, *, from_scratch: bool) -> RunDir:
    """Start a run in the background. Raises JobError and UserError where it does not begin."""
    wait_for_previous(run, reporter)
    _prepare_quietly([str(run.path)], job)
    start_in_background(run, job, from_scratch=from_scratch)
    reporter.say(f"started run {label(run)} in the background")
    return run


def _prepare_quietly(what: Sequence[str], job: JobSpec) -> None:
    code, said = prepare_here(what, job, as_json=True)
    if code:
        raise _told_by_a_program(said)


def _told_by_a_program(said: str) -> OrchestratorError:
    """The error that a program of ours printed as JSON."""
    try:
        record = json.loads(said)
        kind = getattr(errors, str(record["error"]), UserError)
        message = str(record["message"])
    except (KeyError, TypeError, ValueError):
        return JobError(f"data prepare failed: {said.strip() or 'it said nothing'}", code="data_preparation_failed")
    error: OrchestratorError = (UserError if kind is errors.SpecError else kind)(message, code=record.get("code"))
    return error


class _Listening(Lines):
    def __init__(self, run: RunDir, total: int, reporter: Reporter) -> None:
        super().__init__(run, total)
        self._reporter = reporter

    def say(self, message: str, severity: Severity | None = None) -> None:
        self._reporter.say(message)
