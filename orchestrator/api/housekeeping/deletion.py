"""Deleting runs, sweeps and checkpoints: what that is, what forbids it, and the move into the trash.

A run is moved while its lease is held here, so that no training starts in it meanwhile. Cells go before their sweep,
whose ledger says so; whatever is interrupted, each of them is wholly in its place or wholly in the trash.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.api.housekeeping.checkpoints import Keep, needed_by_itself, superfluous, weights_needed
from orchestrator.api.housekeeping.targets import Target, cells_of, folder_of_runs, told_of
from orchestrator.errors import UserError
from orchestrator.files.stored_files import DAMAGE, read_object
from orchestrator.launch.run_names import must_be_readable, shown_label
from orchestrator.launch.states.run_states import RunStatus, readable_statuses, unreadable
from orchestrator.run_directory.checkpoints.commit_markers import committed, read_commit
from orchestrator.run_directory.checkpoints.disk_use import disk_use, occupied
from orchestrator.run_directory.events.labels import Deleted
from orchestrator.run_directory.events.ledger import CellsDeleted
from orchestrator.run_directory.events.types import Launched, Submitted
from orchestrator.run_directory.labels import write_label
from orchestrator.run_directory.lease import Holder, Lease, held_message, read_holder
from orchestrator.run_directory.rundir import RunDir, in_command, iteration_of, membership_of, named_in_command
from orchestrator.run_directory.trash import Trashed, move_to_trash, place_in
from orchestrator.sweeps.ledger import Entry, SweepDir, all_sweeps
from orchestrator.sweeps.states import UNDER_WAY, cell_state
from orchestrator.tracking import follower
from orchestrator.tracking.mlflow.cursor import FILE_NAME, read_cursor

_NOTE_KEY = "note "
"""How the name begins of what a sweep's cursor has beside ids of MLflow runs."""


@dataclass(frozen=True)
class Doomed:
    """What is to be deleted. `place`: relative to the runs folder; `run`: that it is, or that it is a checkpoint of."""

    place: str
    name: str
    bytes: int
    deletion: str
    run: RunDir | None = None
    is_checkpoint: bool = False

    def to_json(self, runs_dir: Path) -> dict[str, Any]:
        """For programs."""
        return {"name": self.name, "path": str(runs_dir.absolute() / self.place), "bytes": self.bytes}


def runs_and_sweeps(targets: Sequence[Target], runs_dir: Path) -> list[Doomed]:
    """These runs and sweeps, a sweep after the runs of its cells. Raises UserError where one of them is under way, or
    another run needs its weights, or it lies elsewhere: nothing is deleted then.
    """
    found = doomed_with(targets, runs_dir)
    runs = [each.run for each in found if each.run is not None]
    _refuse_live(runs, runs_dir, [target for target in targets if isinstance(target, SweepDir)])
    _refuse_needed(runs_dir, runs)
    return found


def doomed_with(targets: Sequence[Target], runs_dir: Path) -> list[Doomed]:
    """What goes with these runs and sweeps, whether or not something forbids it. Raises UserError for what lies
    elsewhere.
    """
    found: dict[str, Doomed] = {}
    for target in targets:
        deletion = uuid.uuid4().hex
        for run in cells_of(target) if isinstance(target, SweepDir) else [target]:
            place = place_in(runs_dir, run.path)
            size = 0 if run.path.is_symlink() else disk_use(run, committed(run))
            found[place] = Doomed(place, shown_label(run), size, deletion, RunDir(_root(runs_dir) / place))
        if isinstance(target, SweepDir):
            place = place_in(runs_dir, target.path)
            found[place] = Doomed(place, target.name, occupied(target.path), deletion)
    return list(found.values())


def checkpoints(run: RunDir, runs_dir: Path, which: Keep | Path) -> list[Doomed]:
    """The checkpoints of a run that do not stay, or the one in a folder. Raises UserError where that one would be the
    next start's, of a run that is under way or of another one.
    """
    run = RunDir(_root(runs_dir) / place_in(runs_dir, run.path))
    commits = superfluous(run, which) if isinstance(which, Keep) else []
    folders = [commit.path for commit in commits] if isinstance(which, Keep) else [which]
    status = _status(run)
    needed = needed_by_itself(run, status.events) if status.is_active or _live_holder(run) else set()
    weights = weights_needed(runs_dir, [])
    label, deletion = shown_label(run), uuid.uuid4().hex
    found = []
    for folder in folders:
        place = place_in(runs_dir, folder)
        if Path(place).parent.parent.as_posix() != place_in(runs_dir, run.path):
            raise UserError(
                f"{folder} is only linked to from run {label}: it is another run's, or lies elsewhere",
                code="checkpoint_is_linked",
            )
        iteration = iteration_of(folder)
        if iteration in needed:
            raise UserError(
                f"checkpoint {iteration} of run {label} is needed: the run is under way", code="run_is_active"
            )
        newest = run.checkpoint_dirs()[-1][1].name == folder.name
        for path, other in weights:
            if path.resolve() == folder.resolve() or (newest and path.resolve() == run.path.resolve()):
                raise UserError(_needed(f"checkpoint {iteration} of run {label}", other), code="checkpoint_in_use")
        name = f"{label} checkpoint {iteration}"
        commit = read_commit(folder)
        size = occupied(folder) if commit is None else commit.bytes
        found.append(Doomed(place, name, size, deletion, run, is_checkpoint=True))
    return found


def delete(doomed: Sequence[Doomed], runs_dir: Path) -> list[Trashed]:
    """Move them to the trash, one after the other, and tell sweeps and MLflow. Raises UserError where one has been
    started meanwhile; what was moved before it stays deleted.
    """
    cells = _cells(runs_dir)
    deleted_sweeps = {each.place for each in doomed if each.run is None}
    moved = []
    try:
        for each in doomed:
            try:
                with told_of(f"{each.name} is not deleted"):
                    moved.append(_move(each, runs_dir))
            except FileNotFoundError:
                raise UserError(
                    f"{each.name} is there no more: somebody else has deleted it", code="already_deleted"
                ) from None
            for sweep, entry in cells.get(each.place, ()):
                if place_in(runs_dir, sweep.path) not in deleted_sweeps:  # else the ledger goes as well, as it is
                    sweep.append(CellsDeleted(cells=(entry.id,)))
    finally:
        follower.send_in_background([entry.path for entry in moved if entry.mlflow])
    return moved


def cells_at(runs_dir: Path, place: str) -> list[tuple[SweepDir, Entry]]:
    """The sweeps that a run is a cell of, and as what."""
    return _cells(runs_dir).get(place, [])


def cells_lost(doomed: Sequence[Doomed], runs_dir: Path) -> dict[str, int]:
    """How many cells each sweep loses that is not deleted itself: a run may be a cell of several."""
    cells, places = _cells(runs_dir), {each.place for each in doomed}
    sweeps = [sweep for place in places for sweep, _ in cells.get(place, ())]
    return Counter(sweep.name for sweep in sweeps if place_in(runs_dir, sweep.path) not in places)


def _cells(runs_dir: Path) -> dict[str, list[tuple[SweepDir, Entry]]]:
    """The cells of all sweeps of a folder, by where their runs lie."""
    found: dict[str, list[tuple[SweepDir, Entry]]] = {}
    for sweep in all_sweeps(runs_dir):
        with contextlib.suppress(UserError, *DAMAGE):  # a damaged sweep keeps nobody from deleting another one's runs
            for entry in (*sweep.left(), *sweep.planned().cells):
                found.setdefault(entry.run, []).append((sweep, entry))
    return found


def _move(each: Doomed, runs_dir: Path) -> Trashed:
    if each.run is None:
        told = mlflow_of_sweep(_root(runs_dir) / each.place)
        return move_to_trash(runs_dir, each.place, name=each.name, size=each.bytes, deletion=each.deletion, mlflow=told)
    if each.is_checkpoint:
        live = _status(each.run).is_active
        with contextlib.nullcontext() if live else _taken(each.run) as lease:
            entry = move_to_trash(runs_dir, each.place, name=each.name, size=each.bytes, deletion=each.deletion)
            if lease is not None:
                lease.release()
        return entry
    cursor = read_cursor(each.run)
    told = [] if cursor is None else [{"uri": _uri(cursor.store), "run_id": cursor.run_id}]
    with _taken(each.run) as lease:
        entry = move_to_trash(
            runs_dir, each.place, name=each.name, size=each.bytes, deletion=each.deletion, mlflow=told
        )
    content = RunDir(entry.content)
    Lease(content, lease.token, 0.0).release()  # for the case that it is put back
    write_label(content.path, Deleted())
    return entry


@contextlib.contextmanager
def _taken(run: RunDir) -> Iterator[Lease]:
    """Hold a run, so that nobody starts it. Raises UserError where somebody just has. The lease is given back only
    where nothing came of it: it moves along with its run.
    """
    before = _starts(run)
    was_started = UserError(
        f"run {shown_label(run)} was started this moment: nothing of it was deleted", code="run_is_active"
    )
    if _status(run).is_active:
        raise was_started
    lease = Lease.acquire(run, launch_id=f"delete-{uuid.uuid4().hex}")
    try:
        if _starts(run) != before:
            raise was_started
        yield lease
    except BaseException:
        with contextlib.suppress(OSError):
            lease.release()
        raise


def _starts(run: RunDir) -> int:
    with contextlib.suppress(OSError):
        return sum(isinstance(event, Launched | Submitted) for event in run.events())
    return 0


def _status(run: RunDir) -> RunStatus:
    """The status of a run, whatever is damaged in it."""
    found, troubles = readable_statuses([run])
    return found[0] if found else unreadable(run, troubles[run])


def _live_holder(run: RunDir) -> Holder | None:
    """Who may write a run now. Raises UserError where its lease cannot be read: nobody knows then."""
    with must_be_readable(run):
        holder = read_holder(run)
    return holder if holder is not None and holder.live else None


def _refuse_live(runs: Sequence[RunDir], runs_dir: Path, sweeps: Sequence[SweepDir]) -> None:
    """Raises UserError for runs that some process works on or will, as far as is known: in a queue, too. A cell of
    `sweeps` is stopped with its sweep, which would start the next one.
    """
    found, troubles = readable_statuses(runs)
    cells = _cells(runs_dir) if runs else {}
    for status in [*found, *(unreadable(run, error) for run, error in troubles.items())]:
        run = status.run
        if not status.is_active and (holder := _live_holder(run)) is not None:
            raise UserError(f"{held_message(run, holder)}\n      It was not deleted.", code="run_is_held")
        states = [
            cell_state(status.state, status.launched, sweep.submissions().get(entry.id))
            for sweep, entry in cells.get(f"{run.name}/{run.run_id}", ())
        ]
        if status.is_active or any(state in UNDER_WAY for state in states):
            state = status.state if status.is_active else "about to be started by its sweep"
            sweep = next((each for each in sweeps if membership_of(run).get("sweep") == each.name), None)
            stop = f"cancel {in_command(run)}" if sweep is None else f"sweep cancel {_in_command(sweep)}"
            raise UserError(
                f"run {shown_label(run)} is {state}: nothing was deleted.\n"
                f"      `orchestrator {stop}` stops it; then it can be deleted.",
                code="run_is_active",
            )


def _refuse_needed(runs_dir: Path, runs: Sequence[RunDir]) -> None:
    """Raises UserError where other runs will begin with the weights of these."""
    folders = {run.path.resolve(): run for run in runs}
    for path, other in weights_needed(runs_dir, [run.path for run in runs]):
        for place in (path.resolve(), *path.resolve().parents):
            if place in folders:
                raise UserError(_needed(f"run {shown_label(folders[place])}", other), code="run_in_use")


def _needed(what: str, other: RunDir) -> str:
    return (
        f"{what} is needed: run {shown_label(other)} begins with its weights (checkpoint.pretrained) and has no "
        f"checkpoint of its own yet.\n      Delete that run first: orchestrator delete {in_command(other)}"
    )


def mlflow_of_sweep(home: Path) -> list[Mapping[str, Any]]:
    """The MLflow runs that a sweep has, one for each store and experiment."""
    known = read_object(home / FILE_NAME, home)
    stores = {key: run_id for key, run_id in known.items() if not key.startswith(_NOTE_KEY)}
    return [{"uri": _uri(key.rpartition(" ")[0]), "run_id": str(run_id)} for key, run_id in stores.items()]


def _uri(store: str) -> str | None:
    """The address of a store as a cursor writes it; None for the one in the runs folder."""
    return None if store == "default" else store


def _in_command(sweep: SweepDir) -> str:
    return named_in_command(sweep.name, folder_of_runs(sweep))


def _root(runs_dir: Path) -> Path:
    return Path(runs_dir).resolve()
