"""Which checkpoints of a run are to be deleted, and which somebody still needs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.files.stored_files import DAMAGE
from orchestrator.launch.runs import run_folders
from orchestrator.run_directory.checkpoints.commit_markers import Commit, committed
from orchestrator.run_directory.checkpoints.newest import passed_over
from orchestrator.run_directory.checkpoints.pretrained import find_weights
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import read_series

_LOSSES = ("validation/loss", "train/loss")
_WAIT_FOR_EXPORT = 4
"""The one that is exported, and those that may wait for it."""


@dataclass(frozen=True)
class Keep:
    """Which checkpoints stay: so many of the newest, and the one with the lowest loss."""

    last: int = 0
    best: bool = False


def superfluous(run: RunDir, keep: Keep) -> list[Commit]:
    """The committed checkpoints that do not stay. Raises UserError where the best is to stay and none was measured."""
    commits = committed(run)
    kept = {commit.iteration for commit in commits[len(commits) - keep.last :]} if keep.last else set()
    if keep.best and commits:
        kept.add(best(run, commits).iteration)
    return [commit for commit in commits if commit.iteration not in kept]


def best(run: RunDir, commits: Sequence[Commit]) -> Commit:
    """The checkpoint with the lowest validation loss, or training loss where nothing was validated: as it was measured
    last when the checkpoint was saved. Of equal ones the newest. Raises UserError where nothing was measured.
    """
    for key in _LOSSES:
        measured = [(iteration, value) for iteration, value in read_series(run, key) if math.isfinite(value)]
        found = []
        for commit in commits:
            before = [value for iteration, value in measured if iteration <= commit.iteration]
            if before:
                found.append((before[-1], -commit.iteration, commit))
        if found:
            return min(found, key=lambda each: each[:2])[2]
    raise UserError(
        f"run {run.name}/{run.run_id} has measured no loss: nothing says which checkpoint is the best",
        code="no_measured_loss",
    )


def needed_by_itself(run: RunDir, events: EventLog) -> set[int]:
    """Iterations of the checkpoints that a live run would start again from, or is exporting."""
    iterations = [commit.iteration for commit in committed(run)]
    damaged = passed_over(events)
    whole = [iteration for iteration in iterations if iteration not in damaged]
    needed = {iteration for iteration in iterations if whole and iteration >= whole[-1]}
    spec = run.read_object(run.resolved()).get("checkpoint")
    if isinstance(spec, dict) and spec.get("export"):
        needed.update(iterations[-_WAIT_FOR_EXPORT:])
    return needed


def weights_needed(runs_dir: Path, apart_from: Collection[Path]) -> list[tuple[Path, RunDir]]:
    """What runs of a folder will read as their first weights: the folder of a run or a checkpoint, and who. Those that
    have a checkpoint of their own, or are done, read them no more; what `apart_from` names is not asked.
    """
    found = []
    for run in run_folders(runs_dir):
        if run.path in apart_from:
            continue
        try:
            spec = run.read_object(run.resolved()).get("checkpoint")
            text = spec.get("pretrained") if isinstance(spec, dict) else None
            if not isinstance(text, str):
                continue
            events = run.events()
            end = events.last_end
            if committed(run) or (end is not None and end.cause == "completed"):
                continue
            found.append((find_weights(text, runs_dir, [Path(events.folder)] if events.folder else []), run))
        except (UserError, *DAMAGE):  # what it names is not there, or it says nothing that can be read
            continue
    return found
