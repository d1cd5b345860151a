"""A checkpoint's progress and position in the data: from its marker, or, for earlier versions, from its run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.data.samples.position import DataPosition, beginning, has_sources
from orchestrator.errors import CheckpointError
from orchestrator.planning.training_schedule.batch import BatchSchedule, Progress
from orchestrator.planning.training_schedule.spec_history import Period, periods_of
from orchestrator.run_directory.checkpoints.commit_markers import COMMIT_FILE, Commit
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.rundir import RunDir
from orchestrator.self_contained_checkpoints import JOB_FILE, spec_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved


@dataclass(frozen=True)
class StoredProgress:
    """What a checkpoint's training goes on from."""

    progress: Progress
    position: DataPosition | None
    """In its data; None where it has no sources."""


def progress_of(commit: Commit, job: JobSpec) -> Progress:
    """How far a checkpoint is, by its marker alone: one of an earlier version is taken for one of a run whose sequences
    never changed in length.
    """
    tokens = commit.consumed_tokens
    tokens = commit.consumed_samples * job.tokens_per_sample if tokens is None else tokens
    return Progress(commit.iteration, commit.consumed_samples, tokens)


def stored_progress(run: RunDir, commit: Commit, events: EventLog) -> StoredProgress:
    """That of a run's checkpoint. Raises CheckpointError where its marker is damaged, and UserError where the run's
    spec is asked for and cannot be read.
    """
    iteration, samples = commit.iteration, commit.consumed_samples
    if "consumed_tokens" in commit.details:
        return StoredProgress(Progress(iteration, samples, _tokens(commit)), _position(commit))
    period = _period_before(run, commit, events)
    job = period.job
    # The order of the samples was that of the length which this spec has by itself.
    wanted, is_ours = BatchSchedule.of(job).drawn_samples, "imported_from" not in commit.details
    position = beginning(job, wanted, larger_surplus=is_ours) if has_sources(job) else None
    return StoredProgress(Progress(iteration, samples, period.tokens_at(samples)), position)


def _period_before(run: RunDir, commit: Commit, events: EventLog) -> Period:
    """The period that led to a checkpoint, with the spec that the checkpoint carries, where it does."""
    periods = periods_of(run, events)
    period = next((period for period in reversed(periods) if period.iteration < commit.iteration), periods[0])
    return replace(period, job=load_resolved(spec_of(commit))) if JOB_FILE in commit.files else period


def _tokens(commit: Commit) -> int:
    if commit.consumed_tokens is None:
        raise _unreadable(commit, "the tokens consumed")
    return commit.consumed_tokens


def _position(commit: Commit) -> DataPosition | None:
    record = commit.details.get("data")
    if record is None:
        return None
    try:
        position = DataPosition.from_dict(record)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _unreadable(commit, "the position in the data") from error
    if position.since > commit.consumed_samples:
        raise _unreadable(commit, "the position in the data")
    return position


def _unreadable(commit: Commit, what: str) -> CheckpointError:
    return CheckpointError(
        f"{commit.path}: what its {COMMIT_FILE} says of {what} cannot be read; restore that file, or remove the "
        "checkpoint to continue from the previous one",
        code="unreadable_commit_marker",
    )
