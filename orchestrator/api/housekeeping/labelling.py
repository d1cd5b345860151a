"""Tags, notes, names and archiving: events that nothing of a training depends on, so a live run takes them as well."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from orchestrator.api.housekeeping.targets import Target, cells_of, folder_of_runs, told_of
from orchestrator.errors import UserError
from orchestrator.fields.values import NAME_PATTERN
from orchestrator.files.stored_files import printable
from orchestrator.launch.run_names import shown_name
from orchestrator.launch.runs import run_folders
from orchestrator.run_directory.events.labels import (
    Archived,
    LabelEvent,
    Labels,
    Noted,
    Renamed,
    Tagged,
    Unarchived,
    Untagged,
)
from orchestrator.run_directory.labels import read_labels, write_label
from orchestrator.run_directory.lease import read_holder
from orchestrator.run_directory.rundir import RunDir
from orchestrator.sweeps.ledger import SweepDir, all_sweeps
from orchestrator.tracking import follower
from orchestrator.tracking.mlflow.cursor import read_cursor

MOST_CHARACTERS = 4000
"""Of a note."""
_TAG = re.compile(r"[^\s,\-][^\s,]{0,63}")


def tag(target: Target, add: Sequence[str] = (), remove: Sequence[str] = ()) -> Labels:
    """Add and remove tags, of a sweep also those of its cells. Raises UserError for what is no tag."""
    for each in (*add, *remove):
        if not _TAG.fullmatch(each) or printable(each) != each:
            raise UserError(
                f"{each!r} is no tag: it has 1 to 64 characters, no spaces and commas, and no - at first",
                code="malformed_tag",
            )
    for folder in _with_cells(target):
        known = set(read_labels(folder).tags)
        new = tuple(each for each in dict.fromkeys(add) if each not in known)
        gone = tuple(each for each in dict.fromkeys(remove) if each in known | {*new})
        _write(folder, *([Tagged(tags=new)] if new else []), *([Untagged(tags=gone)] if gone else []))
    return _followed(target)


def tags_of(target: Target) -> set[str]:
    """The tags that it was given, of a sweep also those of its cells."""
    return {each for folder in _with_cells(target) for each in read_labels(folder).tags}


def note(target: Target, text: str) -> Labels:
    """Give it this note in place of the one that it has; an empty one for none. Raises UserError for what is no text
    or too long.
    """
    if printable(text) != text:
        raise UserError("a note has no control characters", code="control_character")
    if len(text) > MOST_CHARACTERS:
        raise UserError(
            f"a note has at most {MOST_CHARACTERS:,} characters, and this one {len(text):,}", code="note_too_long"
        )
    if read_labels(target.path).note != text.strip():
        _write(target.path, Noted(note=text.strip()))
    return _followed(target)


def archive(target: Target, *, undo: bool = False) -> Labels:
    """Hide it from lists, a sweep with its cells, or show it again."""
    for folder in _with_cells(target):
        if read_labels(folder).archived == undo:
            _write(folder, Unarchived() if undo else Archived())
    return _followed(target)


def rename(run: RunDir, name: str) -> Labels:
    """Have a run shown as `name`. Its folder, its job and its id stay, so that all that refers to these goes on, and it
    is still found by what it was called. Raises UserError for what is no name, or another's.
    """
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise UserError(
            f"{name!r} is no name: letters, digits, `.`, `_` and `-`, at most 80, the first a letter or digit",
            code="malformed_name",
        )
    former = shown_name(run)
    if name != former:
        _check_free(name, run, folder_of_runs(run))
        _write(run.path, Renamed(to=name, former=former))
    return _followed(run)


def _check_free(name: str, run: RunDir, runs_dir: Path) -> None:
    """Raises UserError where something else is called so; a run may always have its job's name."""
    if name == run.name:
        return
    for other in run_folders(runs_dir):
        if name == other.name:
            raise UserError(f"{name} is the name of a job that has runs here: choose another", code="name_taken")
        if other.run_id.startswith(name):
            raise UserError(
                f"{name} is how the id of run {other.name}/{other.run_id} begins: choose another name",
                code="name_taken",
            )
        if other.path != run.path and read_labels(other.path).name == name:
            raise UserError(
                f"{name} is what run {other.name}/{other.run_id} is called: choose another name", code="name_taken"
            )
    if any(name == sweep.name for sweep in all_sweeps(runs_dir)):
        raise UserError(f"{name} is the name of a sweep: choose another", code="name_taken")


def _with_cells(target: Target) -> list[Path]:
    cells = cells_of(target) if isinstance(target, SweepDir) else []
    return [target.path, *(run.path for run in cells)]


def _write(folder: Path, *events: LabelEvent) -> None:
    with told_of(f"{folder.parent.name}/{folder.name} is not labelled"):
        for event in events:
            write_label(folder, event)


def _followed(target: Target) -> Labels:
    """Its labels, after MLflow was told where it knows a run; a live one has somebody who tells it."""
    runs = cells_of(target) if isinstance(target, SweepDir) else [target]
    follower.send_in_background([run.path for run in runs if read_cursor(run) is not None and not _is_held(run)])
    return read_labels(target.path)


def _is_held(run: RunDir) -> bool:
    try:
        holder = read_holder(run)
    except OSError:
        return False
    return holder is not None and holder.live
