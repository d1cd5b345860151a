"""Which run of its name a job continues: the latest of exactly this spec, or else one whose spec differs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import SpecError, UserError
from orchestrator.fields.resume import AtTheStart
from orchestrator.kernel_selection.changes import diff_jobs
from orchestrator.launch.runs import refuse_lost_spec, saved_up_to, specs_named, written_of
from orchestrator.launch.states.run_states import RunStatus, last_iteration, readable_statuses
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.run_directory.events.types import CheckpointSaved
from orchestrator.run_directory.rundir import RunDir, cell_of
from orchestrator.run_directory.runs_folder import RUN_ID
from orchestrator.spec.documents.field_names import overridden
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved
from orchestrator.spec.schema.diff import Change, on_resume
from orchestrator.spec.schema.shape import shape_at

_LENGTHS = ("schedule.train_iters", "schedule.train_samples", "schedule.train_tokens")
_OVERRIDE = re.compile(r"^# --set (.*)$", re.MULTILINE)
"""How the text of a spec tells what was set on the command line."""


@dataclass(frozen=True)
class Continuation:
    """A run that a job would continue."""

    run: RunDir
    job: JobSpec
    """What it would continue with: the job as written, and the run's own values for keys that nobody wrote."""
    changes: tuple[Change, ...] = ()
    """What a person changed since."""
    is_settled: bool = True
    """Whether it goes on with these changes unasked."""
    is_lost: bool = False
    """Whether it has no checkpoint any more to go on from, though it had."""

    @property
    def is_forbidden(self) -> bool:
        """Whether it cannot go on with these changes."""
        return self.is_lost or any(change.kind == "forbidden" for change in self.changes)


def find_continuation(
    job: JobSpec,
    written: str,
    runs_dir: Path,
    *,
    from_scratch: bool = False,
    warn: Callable[[str], object] = lambda message: None,
) -> Continuation | None:
    """The run that a job continues; None where a new one would begin. `written`: the job as its author wrote it.

    The latest run of this very spec; else the last chosen one that goes on with the changes unasked; else the last
    chosen one that has done work, whether or not what it saved is still there. Cells of sweeps count for the first
    only. `warn` hears of runs whose spec cannot be read. Raises UserError where one of them has saved, or the state of
    one cannot be read, and no other run is continued.
    """
    others = []
    wanted = job.config_hash
    for run, spec in specs_named(job.name, runs_dir, warn):
        if spec.config_hash == wanted:
            return Continuation(run, job)
        others.append((run, spec))
    or_else = "start another run at iteration 0 with --new"
    refuse_lost_spec(job, runs_dir, or_else)
    specs = {run: spec for run, spec in others if cell_of(run) is None}
    statuses, troubles = readable_statuses(list(specs))
    found = _of_another_spec(statuses, specs, job, written, from_scratch=from_scratch)
    if not found:
        refuse_troubles(troubles, or_else)
        _refuse_unreadable(job.name, runs_dir, or_else)
    return next((each for each in found if each.is_settled), found[0] if found else None)


def _of_another_spec(
    statuses: Sequence[RunStatus], specs: Mapping[RunDir, JobSpec], job: JobSpec, written: str, *, from_scratch: bool
) -> list[Continuation]:
    """Those that the job continues with changes, unasked or not, in the order of `statuses`."""
    found = []
    for status in statuses:
        if status.events.imported_from is not None:
            continue
        spec = specs[status.run]
        merged = with_unwritten(spec, job, written_of(status.run), written)
        goes_on = continued_with(status, spec, merged, from_scratch=from_scratch)
        if goes_on is not None and (_has_work(status) or from_scratch or not status.events.was_started):
            found.append(goes_on)
    return found


def continued_with(status: RunStatus, old: JobSpec, new: JobSpec, *, from_scratch: bool = False) -> Continuation | None:
    """How a run goes on with another spec, unasked or not; None where it has done no work that another run would do
    again, and the changes are not settled.
    """
    changes = tuple(diff_jobs(old, new))
    has_work = _has_work(status)
    is_lost = has_work and not (status.checkpoints or status.is_active or from_scratch)
    # A completed run whose checkpoints were deleted is what an edit of its tags, say, would train once more.
    is_done = status.state == "completed" and not any(change.path in _LENGTHS for change in changes)
    if is_settled(changes, old, new, status) and (is_done or not is_lost):
        return Continuation(status.run, new, changes)
    return Continuation(status.run, new, changes, is_settled=False, is_lost=is_lost) if has_work else None


def _has_work(status: RunStatus) -> bool:
    """Whether a run has got anywhere: a checkpoint that was saved may have been deleted or damaged since."""
    has_saved = status.state == "completed" or status.events.last(CheckpointSaved) is not None
    return has_saved or bool(status.checkpoints) or status.is_active


def is_settled(changes: Sequence[Change], old: JobSpec, new: JobSpec, status: RunStatus) -> bool:
    """Whether a run goes on with these changes unasked: they are safe, or it has completed and is made longer."""
    longer = status.state == "completed" and BatchSchedule.of(new).train_samples > BatchSchedule.of(old).train_samples
    return all(
        longer
        if change.path in _LENGTHS
        else change.kind == "safe" and not isinstance(on_resume(change.path), AtTheStart)
        for change in changes
    )


def has_steps_left(found: Continuation, status: RunStatus) -> bool:
    """Whether a run that has completed trains on with what was changed; not where it has no checkpoint. Where the last
    one is gone, the steps up to it are none of these.
    """
    checkpoints, saved = status.checkpoints, status.events.last(CheckpointSaved)
    if not found.changes or not checkpoints:
        return False
    reached = max(checkpoints[-1].iteration, saved.iteration or 0 if saved else 0)
    return last_iteration(found.job, checkpoints) > reached


def with_unwritten(old: JobSpec, new: JobSpec, before: str, now: str) -> JobSpec:
    """`new`, where nobody wrote a key then (`before`) or `now` with the value that the run has: a default or a preset
    that is another one since then is no change of a person's. What was never written down is compared as it is.
    """
    if not before:
        return new
    words = _words(f"{before}\n{now}")
    has, wants = old.model_dump(mode="json"), new.model_dump(mode="json")
    if has["model"]["preset"] != wants["model"]["preset"]:
        words |= set(has["model"])
    if not _keep_unwritten(has, wants, words):
        return new
    try:
        return JobSpec.model_validate(wants)
    except SpecError:  # what a person changed does not go with it
        return new


def _words(written: str) -> set[str]:
    """The words of a spec, among them the keys that are written. `--set tp=2` writes one by its short name."""
    fields = map(overridden, _OVERRIDE.findall(written))
    return set(re.findall(r"\w+", "\n".join([written, *fields])))


def _keep_unwritten(has: dict[str, Any], wants: dict[str, Any], words: set[str], place: tuple[str, ...] = ()) -> bool:
    """Put into `wants` what `has` under keys that are not among the words; whether anything became another. Keys of a
    mapping that anybody names are no fields, which have defaults: it is one value.
    """
    changed = False
    for key, value in has.items():
        wanted, path = wants.get(key), (*place, key)
        shape = shape_at(path)
        is_section = shape is not None and shape.kind == "section"
        if is_section and isinstance(value, dict) and isinstance(wanted, dict):
            changed |= _keep_unwritten(value, wanted, words, path)
        elif value != wanted and key not in words:
            wants[key] = value
            changed = True
    return changed


def refuse_troubles(troubles: Mapping[RunDir, Exception], or_else: str) -> None:
    """Raises UserError for a run whose state cannot be read: nobody can say whether a job would do its work again. One
    that this user may not read is another person's, whose work is not theirs.
    """
    for run, error in troubles.items():
        if not isinstance(error, PermissionError):
            raise UserError(
                f"run {run.name}/{run.run_id} cannot be read, so nobody can say what it has done: {error}.\n"
                f"      Put that right to continue it, or {or_else}.",
                code="unreadable_run",
            ) from error


def _refuse_unreadable(name: str, runs_dir: Path, or_else: str) -> None:
    """Raises UserError for a run of this name that has saved, and a spec that cannot be read: nobody can say whether
    the job would do its work again.
    """
    folder = runs_dir.absolute() / name
    try:
        runs = [RunDir(folder / each) for each in sorted(os.listdir(folder)) if RUN_ID.fullmatch(each)]
    except OSError:
        return
    for run in runs:
        saved = saved_up_to(run) if cell_of(run) is None else None
        try:
            if saved is not None:
                load_resolved(run.resolved())
        except UserError as error:
            raise UserError(
                f"run {run.name}/{run.run_id} has saved checkpoints up to iteration {saved}, and its spec cannot be "
                f"compared with this job: {str(error).splitlines()[0]}.\n"
                f"      Restore that file to continue it, or {or_else}.",
                code="unreadable_stored_spec",
            ) from error
