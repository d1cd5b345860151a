"""What was deleted: put back, or removed for good."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.api.housekeeping.deletion import cells_at
from orchestrator.api.housekeeping.targets import told_of
from orchestrator.errors import RunNotFound, UserError
from orchestrator.run_directory.events.labels import Restored
from orchestrator.run_directory.events.ledger import CellsRestored
from orchestrator.run_directory.labels import read_labels, write_label
from orchestrator.run_directory.rundir import RunDir
from orchestrator.run_directory.trash import Trashed, put_back, remove_content, remove_leftovers, trashed
from orchestrator.spec.messages.suggestions import closest
from orchestrator.tracking import follower
from orchestrator.tracking.mlflow.cursor import read_cursor

_ORDER = ("sweep", "run", "checkpoint")
"""A checkpoint needs its run, and a cell is written into the ledger of its sweep."""


def deleted_as(text: str, runs_dir: Path) -> list[Trashed]:
    """What was deleted last under a name, all that was deleted with it: a run, a sweep with its cells, checkpoints of a
    run. Raises RunNotFound, naming the nearest.
    """
    there = [entry for entry in trashed(runs_dir) if entry.has_content]
    found = [entry for entry in there if text in _names(entry)] or _begun(text, there)
    if not found:
        known = sorted({name for entry in there for name in _names(entry)})
        near = closest(text, known)
        way_out = f"did you mean {' or '.join(near)}?" if near else "`orchestrator prune --dry-run` lists what is in it"
        raise RunNotFound(f"there is no {text} in the trash of {runs_dir}: {way_out}")
    return [entry for entry in there if entry.deletion == found[-1].deletion]


def undo(entries: Sequence[Trashed], runs_dir: Path) -> list[Path]:
    """Put them back, where they are whole again at once. Raises UserError where something else is there now."""
    back = []
    try:
        for entry in sorted(entries, key=lambda each: _ORDER.index(each.kind)):
            for sweep, cell in cells_at(runs_dir, entry.place) if entry.kind == "run" else ():
                sweep.append(CellsRestored(cells=(cell.id,)))  # until its folder is back, it counts as deleted
            with told_of(f"{entry.name} is not put back"):
                path = put_back(entry)
            if entry.kind != "checkpoint":
                write_label(path, Restored())
            back.append(path)
    finally:
        follower.send_in_background([path for path in back if read_cursor(RunDir(path)) is not None])
    return back


def to_prune(runs_dir: Path, older_than: float | None = None) -> list[Trashed]:
    """What was deleted, or what was deleted more than so many seconds ago."""
    latest = time.time() - (older_than or 0.0)
    return [entry for entry in trashed(runs_dir) if entry.has_content and entry.deleted <= latest]


def prune(entries: Sequence[Trashed], runs_dir: Path) -> list[Trashed]:
    """Remove these for good, and what earlier removals left. Returns those of which MLflow is still to be told: until
    then, their entries stay. Raises UserError, after all others are removed, where the system refuses one.
    """
    refused: list[UserError] = []
    for entry in entries:
        try:
            with told_of(f"{entry.name} is not removed"):
                remove_content(entry)
        except UserError as error:
            refused.append(error)
    remove_leftovers(runs_dir)
    waiting = [entry for entry in trashed(runs_dir) if entry.mlflow]
    follower.send_in_background([entry.path for entry in waiting])
    if refused:
        more = f" ({len(refused) - 1} more were refused, too)" if len(refused) > 1 else ""
        raise UserError(
            f"{refused[0]}{more}; the other {len(entries) - len(refused)} are removed", code="trash_not_emptied"
        )
    return waiting


def _begun(text: str, entries: Sequence[Trashed]) -> list[Trashed]:
    """What was deleted of the run whose id begins so. Raises UserError where several do."""
    of_run = [(entry, run_id) for entry in entries if text and (run_id := _run_id(entry) or "").startswith(text)]
    ids = sorted({run_id for _, run_id in of_run})
    if len(ids) > 1:
        raise UserError(
            f"{text} is not one run in the trash but {len(ids)}: {', '.join(ids)}", code="ambiguous_trashed_run"
        )
    return [entry for entry, _ in of_run]


def _run_id(entry: Trashed) -> str | None:
    """The id of the run that was deleted, or that a checkpoint is of; None for a sweep."""
    path = Path(entry.place)
    return path.name if entry.kind == "run" else path.parent.parent.name if entry.kind == "checkpoint" else None


def _names(entry: Trashed) -> set[str]:
    """What it is called by a person who looks for it; a checkpoint is found by its run, too."""
    path = Path(entry.place)
    names = {entry.name, entry.place, path.name, entry.name.partition("/")[0]}
    if entry.kind == "checkpoint":
        run = path.parent.parent
        names |= {run.as_posix(), run.name, entry.name.partition(" ")[0]}
    elif entry.kind == "run":
        names.add(path.parent.name)
        with contextlib.suppress(OSError):
            names.update(read_labels(entry.content).former_names)
    return names
