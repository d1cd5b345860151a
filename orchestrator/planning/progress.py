"""How far a checkpoint is, and where in its data: as its marker says, or, of an earlier version's, as its run tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.checkpoints import COMMIT_FILE, Commit
from orchestrator.data.position import DataPosition, beginning, has_sources
from orchestrator.errors import CheckpointError
from orchestrator.planning.batch import BatchSchedule, Progress
from orchestrator.planning.spec_history import Period, periods_of
from orchestrator.rundir import RunDir


@dataclass(frozen=True)
class StoredProgress:
    """What a checkpoint's training goes on from."""

    progress: Progress
    position: DataPosition | None
    """In its data; None where it has no sources."""


def stored_progress(run: RunDir, commit: Commit, events: Iterable[Mapping[str, Any]]) -> StoredProgress:
    """That of a run's checkpoint. Raises CheckpointError where its marker is damaged, and UserError where the run's
    spec is asked for and cannot be read.
    """
    iteration, samples, tokens = commit.iteration, commit.consumed_samples, commit.consumed_tokens
    if tokens is not None:
        return StoredProgress(Progress(iteration, samples, tokens), _position(commit))
    period = _period_before(run, commit, events)
    tokens, job = period.tokens_at(samples), period.job
    # The order of the samples was that of the length which this spec has by itself.
    position = beginning(job, BatchSchedule.of(job).train_samples) if has_sources(job) else None
    return StoredProgress(Progress(iteration, samples, tokens), position)


def _period_before(run: RunDir, commit: Commit, events: Iterable[Mapping[str, Any]]) -> Period:
    """The period that led to a checkpoint."""
    periods = periods_of(run, events)
    return next((period for period in reversed(periods) if period.iteration < commit.iteration), periods[0])


def _position(commit: Commit) -> DataPosition | None:
    record = commit.details.get("data")
    if record is None:
        return None
    try:
        return DataPosition.from_dict(record)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"{commit.path}: what its {COMMIT_FILE} says of the position in the data cannot be read; restore that "
            "file, or remove the checkpoint to go on from the one before"
        ) from error
