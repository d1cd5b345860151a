"""Restoring a training at its start: from its newest complete checkpoint, or from pretrained weights."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.data.samples.moved_sources import at_new_places
from orchestrator.data.samples.position import DataPosition
from orchestrator.errors import CheckpointError, OrchestratorError, UserError
from orchestrator.planning.training_schedule.progress import StoredProgress, stored_progress
from orchestrator.planning.vocabulary import Vocabulary
from orchestrator.run_directory.checkpoints.commit_markers import Commit
from orchestrator.run_directory.checkpoints.newest import passed_over
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import CheckpointSkipped
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.checkpointing.checkpointer import Checkpointer
from orchestrator.runtime.checkpointing.newest_across_ranks import newest_whole
from orchestrator.runtime.checkpointing.pretrained import Source, find_source, load_weights
from orchestrator.runtime.rank import Launch, Processes
from orchestrator.runtime.state import TrainState
from orchestrator.spec.job import JobSpec
from orchestrator.tracking.measurements.inputs import read_inputs

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restored:
    """What a start continued from; the same on every rank."""

    commit: Commit | None
    position: DataPosition | None
    """The position in the data, from the checkpoint."""
    pretrained: Source | None
    fresh: tuple[str, ...]
    """Weights that are missing in the pretrained ones."""


def restore(
    job: JobSpec,
    words: Vocabulary,
    launch: Launch,
    processes: Processes,
    checkpointer: Checkpointer,
    modules: list[Any],
    optimizer: Any,
    state: TrainState,
    from_scratch: bool,
) -> Restored:
    """Load the newest whole checkpoint. A run that was started before and has none fails, unless told to start over."""
    run, ranks, control = launch.run, processes.ranks, processes.control

    def skip(path: Path, message: str) -> None:
        logger.warning("skipped a checkpoint: %s", message)
        launch.records.event(CheckpointSkipped(path=str(path), message=message))

    commit = newest_whole(run, control, ranks, skip)
    events = run.events() if ranks.is_first else EventLog()
    started_before = control.from_first(events.was_started)
    if commit is not None and from_scratch:
        raise UserError(
            f"run {run.run_id} has a checkpoint at iteration {commit.iteration}, which starting from scratch would "
            "discard; resume it, or start another run with --new",
            code="checkpoint_would_be_lost",
        )
    if commit is None and started_before and not from_scratch:
        raise CheckpointError(
            f"run {run.run_id} was started before, but has no readable checkpoint; to begin again at iteration 0, "
            "add --from-scratch",
            code="no_checkpoint_to_resume",
        )
    pretrained, position = None, None
    fresh: tuple[str, ...] = ()
    checkpointer.damaged = set(passed_over(events))
    if commit is not None:
        checkpointer.damaged.discard(commit.iteration)  # put right since
        checkpointer.load(commit, state)
        known = control.from_first(_stored(run, job, commit, events) if ranks.is_first else None)
        if isinstance(known, OrchestratorError):
            raise known
        state.consumed_tokens, position = known.progress.tokens, known.position
    elif (text := job.checkpoint.pretrained) is not None:
        pretrained = find_source(text, run, control, ranks)
        fresh = load_weights(pretrained, job, modules, optimizer, words, control)
    if (began := commit if pretrained is None else pretrained.commit) is not None:
        checkpointer.imported_as = began.imported_as
    return Restored(commit, position, pretrained, fresh)


def _stored(run: RunDir, job: JobSpec, commit: Commit, events: EventLog) -> StoredProgress | OrchestratorError:
    """A checkpoint's progress, or an error that every rank has to raise."""
    try:
        known = stored_progress(run, commit, events)
        return replace(known, position=at_new_places(known.position, job, read_inputs(run)))
    except OrchestratorError as error:
        return error
