"""The table of runs: its columns and their order, cells of a sweep as one row, and losses as a small line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.launch.states.state_words import State
from orchestrator.review.redaction import Redaction
from orchestrator.review.run_summary import RunSummary

STATES: tuple[State, ...] = (
    *("running", "stopping", "queued", "created", "imported"),
    *("completed", "stopped", "cancelled", "failed", "lost"),
)
"""In the order in which they are counted on a page."""
Kind = Literal["text", "figure"]


@dataclass(frozen=True)
class Column:
    """`value` is what runs are ordered by. `falls`: whether a first click puts the greatest first. `is_minor`: a phone
    has no room for it, unless it was chosen. `path`: of a field of the spec.
    """

    name: str
    label: str
    value: Callable[[RunSummary], str | float | None]
    kind: Kind = "text"
    falls: bool = False
    is_minor: bool = True
    path: str = ""

    def text(self, run: RunSummary, discretion: Redaction) -> str | float | None:
        """The value as a page shows it, without what is secret."""
        found = self.value(run)
        return discretion.field(self.path, found) if self.path and isinstance(found, str) else found


def _metric(key: str) -> Callable[[RunSummary], float | None]:
    return lambda run: run.values.get(key)


COLUMNS: Mapping[str, Column] = {
    column.name: column
    for column in (
        Column("run", "Run", lambda run: run.shown_label, is_minor=False),
        Column("state", "State", lambda run: f"{STATES.index(run.state)} {run.cause or ''}", is_minor=False),
        Column("progress", "Progress", lambda run: run.progress, falls=True),
        Column("eta", "ETA", lambda run: run.eta, "figure", is_minor=False),
        Column("curve", "Loss curve", lambda run: run.spark[-1] if run.spark else None),
        Column("loss", "Loss", _metric("train/loss"), "figure", is_minor=False),
        Column("validation", "Validation", _metric("validation/loss"), "figure"),
        Column("speed", "Tokens/s", _metric("throughput/tokens_per_second"), "figure", falls=True),
        Column("mfu", "MFU", _metric("throughput/mfu"), "figure", falls=True),
        Column("goodput", "Goodput", lambda run: run.goodput, "figure", falls=True),
        Column("disk", "Disk", lambda run: run.disk_bytes, "figure", falls=True),
        Column("processes", "Processes", lambda run: run.world_size, "figure", falls=True),
        Column("age", "Age", lambda run: None if run.created is None else -run.created, "figure"),
        Column("user", "User", lambda run: run.user),
        Column("sweep", "Sweep", lambda run: run.sweep and f"{run.sweep} {run.cell}"),
    )
}
"""The columns of the runs by their names, in the order of the page."""


@dataclass(frozen=True)
class Cells:
    """The cells of a sweep in one row."""

    sweep: str
    runs: tuple[RunSummary, ...]

    @property
    def states(self) -> Mapping[str, int]:
        """How many cells are in each state."""
        return counts(self.runs)

    @property
    def progress(self) -> float:
        """Of all cells together, from 0 to 1."""
        return sum(run.progress or 0.0 for run in self.runs) / len(self.runs)

    @property
    def created(self) -> float | None:
        """When its first cell was made."""
        return min((run.created for run in self.runs if run.created is not None), default=None)


def ordered(runs: Iterable[RunSummary], column: Column, *, falling: bool) -> list[RunSummary]:
    """In the order of a column; those that have no value there, or none that can be compared, are the last."""

    def is_missing(value: str | float | None) -> bool:
        return value is None or value == "" or (not isinstance(value, str) and math.isnan(value))

    pairs = [(column.value(run), run) for run in runs]
    known = [(value, run) for value, run in pairs if not is_missing(value)]
    known.sort(key=lambda pair: _place(pair[0]), reverse=falling)
    return [run for _, run in known] + [run for value, run in pairs if is_missing(value)]


def _place(value: str | float | None) -> tuple[str, float]:
    """By what a value is ordered among those of its column: numbers come before texts."""
    return (value, 0.0) if isinstance(value, str) else ("", value or 0.0)


def counts(runs: Iterable[RunSummary]) -> dict[str, int]:
    """How many runs are in each state, without the states that none is in."""
    found = Counter(run.state for run in runs)
    return {state: found[state] for state in STATES if found[state]}


def collapsed(runs: Iterable[RunSummary]) -> list[RunSummary | Cells]:
    """The same with all cells of a sweep in the place of the first of them."""
    rows: list[RunSummary | str] = []
    cells: dict[str, list[RunSummary]] = {}
    for run in runs:
        if run.sweep is None:
            rows.append(run)
        elif run.sweep in cells:
            cells[run.sweep].append(run)
        else:
            cells[run.sweep] = [run]
            rows.append(run.sweep)
    return [Cells(row, tuple(cells[row])) if isinstance(row, str) else row for row in rows]
