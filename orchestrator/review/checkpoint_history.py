"""The checkpoints of a run, those that are there and those that were, and what was measured of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from orchestrator.review.damage import readable
from orchestrator.run_directory.checkpoints.commit_markers import Commit, read_commit, verify
from orchestrator.run_directory.events.types import CheckpointFailed, CheckpointSaved, Event
from orchestrator.run_directory.results.record import Result, results_of
from orchestrator.run_directory.rundir import RunDir

Condition = Literal["whole", "damaged", "unfinished", "failed", "removed"]

_EXPORTS = ("hf",)
_MOST_FILES = 4000
"""So many files are looked at, those of the newest checkpoints: on a network share each takes a while."""


@dataclass
class CheckpointEntry:
    """A checkpoint. `time`: when it was saved last, in seconds since the epoch; `condition`: `whole`, its files are
    there with their sizes; `removed`: it was there, and made room for newer ones. `note` says what is wrong.
    """

    iteration: int
    condition: Condition = "removed"
    time: float | None = None
    bytes: int | None = None
    seconds: float | None = None
    samples: int | None = None
    note: str | None = None
    path: Path | None = None
    exports: list[str] = field(default_factory=list)
    evaluations: list[Result] = field(default_factory=list)


def checkpoints_of(run: RunDir, events: Iterable[Event]) -> list[CheckpointEntry]:
    """Every checkpoint that a run has, or spoke of, the newest first."""
    found: dict[int, CheckpointEntry] = {}
    for event in events:
        _take_in(found, event)
    left = _MOST_FILES
    for iteration, folder in reversed(readable(run.checkpoint_dirs)[0] or []):
        saved = found.setdefault(iteration, CheckpointEntry(iteration))
        left = _look_at(saved, folder, left)
    for layout in _EXPORTS:
        for iteration, _ in readable(partial(run.export_dirs, layout))[0] or []:
            found.setdefault(iteration, CheckpointEntry(iteration)).exports.append(layout)
    for result in readable(lambda: results_of(run))[0] or []:
        found.setdefault(result.iteration, CheckpointEntry(result.iteration)).evaluations.append(result)
    return [found[iteration] for iteration in sorted(found, reverse=True)]


def _take_in(found: dict[int, CheckpointEntry], event: Event) -> None:
    if not isinstance(event, CheckpointSaved | CheckpointFailed) or event.iteration is None:
        return
    saved = found.setdefault(event.iteration, CheckpointEntry(event.iteration))
    saved.time = event.time
    if isinstance(event, CheckpointSaved):
        saved.condition, saved.note = "removed", None
        saved.bytes, saved.seconds = event.bytes, event.seconds
    else:
        saved.condition, saved.note = "failed", event.message or ""


def _look_at(saved: CheckpointEntry, folder: Path, left: int) -> int:
    """What is on the disk goes before what was said; how many files may still be looked at."""
    saved.path = folder
    commit, _ = readable(lambda: read_commit(folder))
    if commit is None:
        saved.condition, saved.note = "unfinished", "it has no readable commit marker, and is skipped"
        return left
    _describe(saved, commit)
    if len(commit.files) > left:
        saved.note = "its files were not checked"
        return left
    problems, problem = readable(lambda: verify(folder, contents=False))
    wrong = [problem] if problem is not None else problems or []
    if wrong:
        saved.condition, saved.note = "damaged", wrong[0] + (f", and {len(wrong) - 1} more" if len(wrong) > 1 else "")
    return left - len(commit.files)


def _describe(saved: CheckpointEntry, commit: Commit) -> None:
    saved.condition, saved.note = "whole", None
    saved.bytes, saved.samples = commit.bytes, commit.consumed_samples
    if saved.time is None:
        found, _ = readable((commit.path / "commit.json").stat)
        saved.time = found.st_mtime if found is not None else None


def measured_in(checkpoints: Sequence[CheckpointEntry]) -> list[Result]:
    """All evaluations, the newest checkpoint's first."""
    return [result for saved in checkpoints for result in sorted(saved.evaluations, key=lambda each: each.name)]
