"""A sweep directory: which cells a sweep has, and what was started. Everything else is derived from the cells' runs.

runs/sweeps/<name>/
    sweep.yaml, sweep.2.yaml, …   as written, at each change
    ledger.jsonl                  what happened, one JSON object a line
    submitit/                     what submitit writes: scripts, pickled cells, the output of its tasks
"""

from __future__ import annotations

import errno
import fcntl
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.errors import RunNotFound, SweepIsHeld, UserError
from orchestrator.files.stored_files import is_name, open_to_append, read_stored
from orchestrator.process import Process
from orchestrator.run_directory.events.ledger import (
    CellsCancelled,
    CellsDeleted,
    CellsPlanned,
    CellsRestored,
    CellsSubmitted,
    Ledger,
    LedgerEvent,
    read_ledger,
)
from orchestrator.run_directory.rundir import RunDir, append_line, write_atomically
from orchestrator.spec.messages.suggestions import closest
from orchestrator.sweeps.search.history import History, history_of

FOLDER = "sweeps"
"""In the runs folder."""

_RUN = re.compile(r"(?!\.)[^/\0]+/(?!\.)[^/\0]+")
"""NAME/ID: a run of the same folder, and nothing outside of it."""
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@dataclass(frozen=True)
class Entry:
    """A cell of the ledger. `id`: its configuration hash; `run`: its run directory, relative to the runs folder."""

    id: str
    name: str
    values: dict[str, str]
    run: str


@dataclass(frozen=True)
class Submission:
    """The last time a cell was handed to a scheduler, or to a driver on this machine."""

    job_id: str
    how: str
    cluster: str | None
    time: float
    driver: Process | None
    max_parallel: int | None
    cancelled: bool


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is now: the newest `planned` event."""

    generation: int
    metric: str | None
    goal: str
    cells: list[Entry] = field(default_factory=list)
    pruned: list[dict[str, Any]] = field(default_factory=list)
    filtered: int = 0
    repeated: int = 0


@dataclass(frozen=True)
class SweepDir:
    """Paths and ledger of one sweep. Creating the object touches nothing on disk."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def runs_dir(self) -> Path:
        return self.path.parent.parent

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def submitit(self) -> Path:
        return self.path / "submitit"

    @property
    def driver_log(self) -> Path:
        """What the program wrote that started cells."""
        return self.path / "driver.log"

    def run(self, entry: Entry) -> RunDir:
        """The run directory of a cell, inside the runs folder."""
        return RunDir(self.runs_dir / entry.run)

    def append(self, event: LedgerEvent) -> None:
        """Add one line to the ledger."""
        append_line(self.ledger, event.record())

    def alone(self) -> AbstractContextManager[None]:
        """Keep other commands from starting cells of this sweep meanwhile. Raises SweepIsHeld when one does."""
        return self._locked(".starting", "another command is starting its cells right now")

    def searching(self) -> AbstractContextManager[None]:
        """Be the only program that searches. Raises SweepIsHeld when one does."""
        return self._locked(".searching", "its search runs already")

    @contextmanager
    def _locked(self, name: str, otherwise: str) -> Iterator[None]:
        self.path.mkdir(parents=True, exist_ok=True)
        with open_to_append(self.path / name, self.path) as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SweepIsHeld(f"sweep {self.name}: {otherwise}") from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            yield  # closing the file gives the lock back, and so does the end of this process

    def planned(self) -> SweepPlan:
        """Raises UserError when the ledger says nothing that can be read, OSError where it cannot be."""
        plans = self._events().plans
        if not plans:
            raise UserError(f"{self.path} is not a sweep: its ledger names no cells", code="not_a_sweep")
        newest = plans[-1]
        cells, pruned = _entries(newest), newest.pruned or []
        if newest.cells is None or len(cells) != len(newest.cells) or not all(isinstance(e, dict) for e in pruned):
            raise UserError(
                f"{self.ledger} is damaged: not all cells of its newest plan can be read", code="damaged_ledger"
            )
        return SweepPlan(
            generation=1 if newest.generation is None else newest.generation,
            metric=newest.metric,
            goal="min" if newest.goal is None else newest.goal,
            cells=cells,
            pruned=pruned,
            filtered=newest.filtered or 0,
            repeated=newest.repeated or 0,
        )

    @property
    def is_planned(self) -> bool:
        """Whether the ledger names cells."""
        return bool(self._events().plans)

    def left(self) -> list[Entry]:
        """The cells that earlier plans had and the newest has not."""
        plans = self._events().plans
        now = {entry.id for plan in plans[-1:] for entry in _entries(plan)}
        earlier = {entry.id: entry for plan in plans[:-1] for entry in _entries(plan)}
        return [entry for entry in earlier.values() if entry.id not in now]

    def plan(self, planned: SweepPlan, text: str) -> None:
        """Make this what the sweep is. `text`: the files as written."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self._text(planned), text)
        self.append(CellsPlanned(**asdict(planned)))

    def is_written_as(self, text: str) -> bool:
        """Whether the sweep's current plan was written this way."""
        try:
            return read_stored(self._text(self.planned()), self.path) == text.encode()
        except OSError:
            return False

    def _text(self, planned: SweepPlan) -> Path:
        return self.path / ("sweep.yaml" if planned.generation == 1 else f"sweep.{planned.generation}.yaml")

    def next_generation(self) -> int:
        """The number of the next plan."""
        return 1 + len(self._events().all(CellsPlanned))

    def submissions(self) -> dict[str, Submission]:
        """The last submission of each cell, by cell id."""
        found: dict[str, Submission] = {}
        for event in self._events():
            if isinstance(event, CellsSubmitted):
                for cell, job_id in (event.jobs or {}).items():
                    found[cell] = Submission(
                        job_id=str(job_id),
                        how=str(event.how),
                        cluster=event.cluster,
                        time=event.time or 0.0,
                        driver=Process.from_record(event.driver) if event.driver is not None else None,
                        max_parallel=event.max_parallel,
                        cancelled=False,
                    )
            elif isinstance(event, CellsCancelled):
                for cell in event.cells or ():
                    if cell in found:
                        found[cell] = replace(found[cell], cancelled=True)
        return found

    def submissions_made(self) -> list[CellsSubmitted]:
        """Every time that cells were handed out."""
        return self._events().all(CellsSubmitted)

    def cancellations(self) -> int:
        """How often cells were cancelled."""
        return len(self._events().all(CellsCancelled))

    def cancels(self, cell: str) -> int:
        """How often a cell was cancelled."""
        return sum(cell in (event.cells or ()) for event in self._events().all(CellsCancelled))

    def search(self) -> History | None:
        """What its ledger says of its search; None where it has none."""
        return history_of(self._events())

    def deleted(self, entries: Iterable[Entry], there: Container[str] = ()) -> set[str]:
        """Ids of those cells that were deleted: as the ledger says, or because their folder is gone. Every cell of a
        plan has one from the start. `there`: runs that are known to be there, as an entry names them.
        """
        said: set[str] = set()
        for event in self._events():
            if isinstance(event, CellsDeleted):
                said.update(event.cells or ())
            elif isinstance(event, CellsRestored):
                said.difference_update(event.cells or ())
        return {
            entry.id
            for entry in entries
            if entry.id in said or (entry.run not in there and not self.run(entry).path.exists())
        }

    def _events(self) -> Ledger:
        return read_ledger(self.ledger)


def sweep_dir(name: str, runs_dir: Path) -> SweepDir:
    """The directory of the sweep of that name, there or not."""
    return SweepDir(runs_dir.absolute() / FOLDER / name)


def all_sweeps(runs_dir: Path) -> list[SweepDir]:
    """Every sweep of a runs folder, by name."""
    found = [SweepDir(path.parent) for path in sorted((runs_dir.absolute() / FOLDER).glob("*/ledger.jsonl"))]
    return [sweep for sweep in found if is_name(sweep.name) and _is_planned(sweep)]


def _is_planned(sweep: SweepDir) -> bool:
    """Whether it is a sweep; an unreadable one is reported when it is read."""
    try:
        return sweep.is_planned
    except OSError:
        return True


def find_sweep(name: str, runs_dir: Path) -> SweepDir:
    """The sweep that a person means: its name, or its directory. Raises RunNotFound, naming the nearest."""
    for sweep in (SweepDir(Path(name).absolute()), sweep_dir(name, runs_dir)):
        if sweep.is_planned:
            return sweep
    known = [sweep.name for sweep in all_sweeps(runs_dir)]
    near = closest(name, known)
    if near:
        way_out = f"did you mean {' or '.join(near)}?"
    else:
        way_out = f"there are {', '.join(known)}" if known else "`orchestrator sweep run` starts one"
    raise RunNotFound(f"there is no sweep {name} in {runs_dir}: {way_out}")


def same_cells(one: SweepPlan, other: SweepPlan) -> bool:
    """Whether two plans are the same sweep."""
    return (one.metric, one.goal, _places(one.cells)) == (other.metric, other.goal, _places(other.cells))


def _entries(event: CellsPlanned) -> list[Entry]:
    """The cells of a plan, as far as they can be read."""
    found = []
    for cell in event.rows:
        match cell:
            case {"id": str(key), "name": str(name), "values": dict(values), "run": str(run)} if _RUN.fullmatch(run):
                found.append(Entry(key, name, {str(path): str(value) for path, value in values.items()}, run))
    return found


def _places(cells: Sequence[Entry]) -> list[tuple[str, str]]:
    """Which cells they are, and in which runs: one that begins anew may have another."""
    return [(cell.id, cell.run) for cell in cells]
