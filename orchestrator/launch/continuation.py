"""Which run of its name a job continues: the latest of exactly this spec, or else one whose spec differs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import SpecError, UserError
from orchestrator.fields.resume import AtTheStart
from orchestrator.kernel_selection.changes import diff_jobs
from orchestrator.launch.runs import refuse_lost_spec, specs_named, written_of
from orchestrator.launch.states.run_states import RunStatus, last_iteration, readable_statuses
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.run_directory.checkpoints.commit_markers import Commit, committed
from orchestrator.run_directory.rundir import (
    RunDir,
    cell_of,
)
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

    @property
    def is_forbidden(self) -> bool:
        """Whether it cannot go on with these changes."""
        return any(change.kind == "forbidden" for change in self.changes)


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
    chosen one that has something to lose. Cells of sweeps count for the first only. `warn` hears of runs whose spec
    cannot be read. Raises UserError where one of them has checkpoints, and no other run is continued.
    """
    others = []
    wanted = job.config_hash
    for run, spec in specs_named(job.name, runs_dir, warn):
        if spec.config_hash == wanted:
            return Continuation(run, job)
        others.append((run, spec))
    or_else = "start another run at iteration 0 with --new"
    refuse_lost_spec(job, runs_dir, or_else)
    found = _of_another_spec(others, job, written, from_scratch=from_scratch)
    if not found:
        _refuse_unreadable(job.name, runs_dir, or_else)
    return next((each for each in found if each.is_settled), found[0] if found else None)


def _of_another_spec(
    others: Sequence[tuple[RunDir, JobSpec]], job: JobSpec, written: str, *, from_scratch: bool
) -> list[Continuation]:
    """Those that the job continues with changes, unasked or not, the last chosen first."""
    specs = {run: spec for run, spec in others if cell_of(run) is None}
    found = []
    for status in readable_statuses(list(specs))[0]:
        if status.events.imported_from is not None:
            continue
        spec = specs[status.run]
        merged = with_unwritten(spec, job, written_of(status.run), written)
        changes = tuple(diff_jobs(spec, merged))
        has_work = bool(status.checkpoints) or status.is_active
        # A completed run whose checkpoints were deleted is what an edit of its tags, say, would train once more.
        is_done = status.state == "completed" and not any(change.path in _LENGTHS for change in changes)
        can_go_on = has_work or from_scratch or is_done or not status.events.was_started
        if can_go_on and is_settled(changes, spec, merged, status):
            found.append(Continuation(status.run, merged, changes))
        elif has_work:
            found.append(Continuation(status.run, merged, changes, is_settled=False))
    return found


def is_settled(changes: Sequence[Change], old: JobSpec, new: JobSpec, status: RunStatus) -> bool:
    """Whether a run goes on with these changes unasked: they are safe, or it has completed and is made longer."""
    longer = status.state == "completed" and BatchSchedule.of(new).train_samples > BatchSchedule.of(old).train_samples
    return all(
        longer
        if change.path in _LENGTHS
        else change.kind == "safe" and not isinstance(on_resume(change.path), AtTheStart)
        for change in changes
    )


def has_steps_left(found: Continuation, checkpoints: Sequence[Commit]) -> bool:
    """Whether a run that has completed trains on with what was changed; not where it has no checkpoint."""
    changed_and_saved = bool(found.changes) and bool(checkpoints)
    return changed_and_saved and last_iteration(found.job, checkpoints) > checkpoints[-1].iteration


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


def _refuse_unreadable(name: str, runs_dir: Path, or_else: str) -> None:
    """Raises UserError for a run of this name that has checkpoints, and a spec that cannot be read: nobody can say
    whether the job would do its work again.
    """
    folder = runs_dir.absolute() / name
    try:
        runs = [RunDir(folder / each) for each in sorted(os.listdir(folder)) if RUN_ID.fullmatch(each)]
    except OSError:
        return
    for run in runs:
        try:
            checkpoints = committed(run) if cell_of(run) is None else []
        except OSError:  # another person's
            continue
        try:
            if checkpoints:
                load_resolved(run.resolved())
        except UserError as error:
            raise UserError(
                f"run {run.name}/{run.run_id} has checkpoints up to iteration {checkpoints[-1].iteration}, and its "
                f"spec cannot be compared with this job: {str(error).splitlines()[0]}.\n"
                f"      Restore that file to continue it, or {or_else}.",
                code="unreadable_stored_spec",
            ) from error
