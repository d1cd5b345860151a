"""How far the cells of a sweep are: derived from their runs, the ledger and the scheduler's word."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Literal

from orchestrator.launch.executor_protocol import states_of
from orchestrator.launch.states.run_states import RunStatus, readable_statuses, unreadable
from orchestrator.launch.states.state_words import State as RunState
from orchestrator.sweeps.ledger import Entry, Submission, SweepDir, SweepPlan
from orchestrator.sweeps.search.history import Measured, Standing

State = Literal["missing", "pending", "running", "completed", "failed", "stopped", "cancelled", "deleted"]

STARTED_BY_RUN = ("missing", "stopped", "cancelled")
"""What `sweep run` starts: what has not failed, is not done and is not on its way."""
STARTED_BY_RETRY = ("failed", "missing")
UNDER_WAY = ("pending", "running")


@dataclass(frozen=True)
class CellStatus:
    """One cell as it is now."""

    entry: Entry
    state: State
    status: RunStatus
    submission: Submission | None
    left: bool = False
    """Whether the sweep had it earlier and has it no more."""
    standing: Standing | None = None
    """Why a search has stopped it."""
    rungs: tuple[Measured, ...] = ()
    """The rungs of a search that it has reached, the first one first."""

    @property
    def note(self) -> str:
        """Why it failed or was stopped by a search, and whether it left the sweep, in a few words."""
        cause = self.status.cause if self.state == "failed" else None
        if self.state == "stopped" and self.standing is not None:
            cause = str(self.standing)
        return ", ".join([*([cause] if cause else []), *(["left"] if self.left else [])])

    def value(self, metric: str) -> float | None:
        """The last value of a metric, the median of the latest steps of a speed; None where it was not measured."""
        return self.status.values.get(metric)

    def compared(self, metric: str) -> Measured | None:
        """What the search that it is in compares it by, at the furthest rung; None for another metric than that."""
        last = self.rungs[-1] if self.rungs else None
        return last if last is not None and last.metric == metric else None

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        values = {key: value if math.isfinite(value) else str(value) for key, value in self.status.values.items()}
        return {
            "cell": self.entry.id,
            "name": self.entry.name,
            "settings": self.entry.values,
            "state": self.state,
            "left": self.left,
            "cause": self.status.cause,
            "message": self.status.message,
            "run_id": self.status.run.run_id,
            "path": str(self.status.run.path),
            "job_id": self.submission.job_id if self.submission else None,
            "iteration": self.status.iteration,
            "values": values,
            **({} if self.standing is None else {"search": self.standing.to_json()}),
            **({"furthest_rung": self.rungs[-1].to_json()} if self.rungs else {}),
        }


def cell_statuses(sweep: SweepDir, planned: SweepPlan) -> list[CellStatus]:
    """The status of every cell, in the order of the sweep. The scheduler is asked once for all of them."""
    return entry_statuses(sweep, planned.cells)


def entry_statuses(sweep: SweepDir, entries: Sequence[Entry]) -> list[CellStatus]:
    """The same of some cells."""
    return _statuses(sweep, entries, left=False)


def left_statuses(sweep: SweepDir) -> list[CellStatus]:
    """The same of the cells that left the sweep, as far as they were ever started."""
    entries = [entry for entry in sweep.left() if sweep.run(entry).path.exists()]
    return [status for status in _statuses(sweep, entries, left=True) if status.state != "missing"]


def _statuses(sweep: SweepDir, entries: Sequence[Entry], *, left: bool) -> list[CellStatus]:
    submissions, search = sweep.submissions(), sweep.search()
    standings = {} if search is None else search.standings()
    measured = {} if search is None else search.measured()
    deleted = sweep.deleted(entries)
    runs = [sweep.run(entry) for entry in entries]
    found, troubles = readable_statuses(runs)
    by_run = {status.run: status for status in (*found, *starmap(unreadable, troubles.items()))}
    statuses = [by_run[run] for run in runs]
    return [
        CellStatus(
            entry,
            "deleted"
            if entry.id in deleted
            else cell_state(
                status.state,
                status.launched,
                submissions.get(entry.id),
                in_search=search is not None and search.waits(entry.id),
            ),
            status,
            submissions.get(entry.id),
            left,
            standings.get(entry.id),
            measured.get(entry.id, ()),
        )
        for entry, status in zip(entries, statuses, strict=True)
    ]


def check_scheduler(cells: Iterable[CellStatus]) -> None:
    """Raises SchedulerError when a scheduler that may still have cells does not answer."""
    ids: dict[str, list[str]] = {}
    for cell in cells:
        if cell.status.job is not None and not cell.status.job.is_over:
            ids.setdefault(cell.status.job.executor, []).append(cell.status.job.job_id)
    for name, job_ids in ids.items():
        states_of(name, job_ids)


def cell_state(
    run: RunState, launched: float | None, submission: Submission | None, *, in_search: bool = False
) -> State:
    """The state of a cell whose run is in that state. `launched`: when the run was last started; `in_search`: whether
    a search is still to start it, or to decide on it.
    """
    if run in ("running", "stopping"):
        return "running"
    if run == "queued" or _waits_here(launched, submission):
        return "pending"  # also one that has completed, and was handed out again to train for longer
    if run == "completed":
        return "completed"
    if in_search and run not in ("failed", "lost"):
        return "pending"
    if submission is not None and submission.cancelled and run != "failed":
        return "cancelled"
    if run in ("failed", "lost"):
        return "failed"
    return run if run in ("stopped", "cancelled") else "missing"


def _waits_here(launched: float | None, submission: Submission | None) -> bool:
    """Whether a driver on this machine will start it yet."""
    if submission is None or submission.driver is None or submission.cancelled:
        return False
    return submission.driver.is_alive and (launched or 0.0) < submission.time


def counts(cells: Iterable[CellStatus]) -> dict[str, int]:
    """How many cells are in each state, the most frequent first."""
    return dict(Counter(cell.state for cell in cells).most_common())


def metric_of(planned: SweepPlan, cells: Iterable[CellStatus]) -> str:
    """What cells are compared by."""
    if planned.metric is not None:
        return planned.metric
    evaluated = any("validation/loss" in cell.status.values for cell in cells)
    return "validation/loss" if evaluated else "train/loss"


def ranked(cells: Iterable[CellStatus], metric: str, goal: str) -> list[CellStatus]:
    """The best first; those that have no such value, or none that is a number, last. Of a search those first that have
    come to the furthest rung: values compare only where they were taken at the same one.
    """
    sign = -1.0 if goal == "max" else 1.0

    def key(cell: CellStatus) -> tuple[int, bool, float]:
        compared = cell.compared(metric)
        value = cell.value(metric) if compared is None else compared.value
        missing = value is None or not math.isfinite(value)
        rung = cell.rungs[-1].rung if cell.rungs else 0
        return -rung, missing, 0.0 if missing or value is None else sign * value

    return sorted(cells, key=key)
