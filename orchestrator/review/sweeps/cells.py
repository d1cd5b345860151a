"""A sweep as it is reviewed: its cells with what they have come to, how far they are, and what became of the others.

Made of the sweep's ledger and of summaries of runs that are known already: no run is read for it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.files.stored_files import is_name
from orchestrator.review.damage import readable
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.sweeps.analysis import Importance, Point, axes_of, importance
from orchestrator.sweeps.ledger import FOLDER, Entry, Submission, SweepDir, SweepPlan
from orchestrator.sweeps.search.history import History, Measured, Standing
from orchestrator.sweeps.states import UNDER_WAY, State, cell_state


@dataclass(frozen=True)
class Cell:
    """A cell and its run; None for a run that is not there. `value`: of the metric that cells are compared by. `left`:
    whether the sweep has it no more. `standing`: why a search has stopped it early; `rungs`: those that it has reached.
    """

    entry: Entry
    state: State
    run: RunSummary | None
    value: float | None
    left: bool = False
    standing: Standing | None = None
    rungs: tuple[Measured, ...] = ()

    @property
    def is_measured(self) -> bool:
        """Whether it has a value that can be compared."""
        return self.value is not None and math.isfinite(self.value)

    def spread(self, metric: str) -> float | None:
        """How far a speed varies from step to step; None for what is no speed."""
        return None if self.run is None else self.run.spreads.get(metric)


@dataclass(frozen=True)
class Reason:
    """Why points of a sweep are no cells. `names`: of these points."""

    reason: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class SweepView:
    """A sweep. `cells`: the best first, of a search those of the furthest rung, then those with a value that left the
    sweep, those without a value last.
    `eta`: seconds until the last one ends at the pace of now; None where nothing runs, or nothing has told its pace.
    `axes`: the parameters that differ, with their values. `metrics`: what any cell has measured.
    """

    sweep: SweepDir
    metric: str
    goal: str
    cells: tuple[Cell, ...]
    pruned: tuple[Reason, ...]
    filtered: int
    repeated: int
    axes: Mapping[str, Sequence[str]]
    metrics: tuple[str, ...]
    states: Mapping[str, int]
    eta: float | None
    search: History | None = None
    """What its ledger says of its search, where it has one."""

    @property
    def current(self) -> tuple[Cell, ...]:
        """The cells that it has now."""
        return tuple(cell for cell in self.cells if not cell.left)

    @property
    def measured(self) -> tuple[Cell, ...]:
        """The cells of now that can be compared, the best first."""
        return tuple(cell for cell in self.cells if cell.is_measured and not cell.left)

    @property
    def best(self) -> Cell | None:
        """The best cell; None where none has a value. Of a search one that was trained to its end, where there is one:
        the others were measured earlier.
        """
        ended = (cell for cell in self.measured if self.search is not None and cell.state == "completed")
        return next(ended, next(iter(self.measured), None))

    @property
    def failed(self) -> tuple[Cell, ...]:
        """The cells that failed."""
        return tuple(cell for cell in self.cells if cell.state == "failed")

    @property
    def is_active(self) -> bool:
        """Whether cells run or wait to run, or a search may still start some."""
        return any(cell.state in UNDER_WAY for cell in self.cells) or (
            self.search is not None and self.search.is_running
        )


def sweep_folders(runs_dir: Path) -> list[SweepDir]:
    """Every folder that has a sweep's ledger, the last one that changed first."""
    found = (runs_dir.absolute() / FOLDER).glob("*/ledger.jsonl")
    sweeps = [SweepDir(path.parent) for path in sorted(found, key=_changed, reverse=True)]
    return [sweep for sweep in sweeps if is_name(sweep.name)]


def view_of(sweep: SweepDir, runs: Mapping[str, RunSummary], metric: str | None = None) -> SweepView:
    """A sweep. `runs`: those of its folder by `name/run_id`. `metric`: what to compare cells by, instead of what the
    sweep says.

    Raises UserError when its ledger cannot be read.
    """
    try:
        planned, left, submissions = sweep.planned(), sweep.left(), sweep.submissions()
        search = sweep.search()
        pruned, deleted = _reasons(planned), sweep.deleted(planned.cells, runs)
    except (OSError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{sweep.ledger} cannot be read: {type(error).__name__}: {error}", code="unreadable_ledger"
        ) from error
    gone = [entry for entry in left if entry.run in runs]
    known = [run for entry in (*planned.cells, *gone) if (run := runs.get(entry.run)) is not None]
    metrics = tuple(sorted({key for run in known for key in run.values}))
    by = metric or planned.metric or usual_metric(metrics)
    there = [entry for entry in planned.cells if entry.id not in deleted]
    cells = [_cell(entry, runs, submissions, by, left=False, search=search) for entry in there]
    if search is not None:
        standings, rungs = search.standings(), search.measured()
        cells = [
            replace(cell, standing=standings.get(cell.entry.id), rungs=rungs.get(cell.entry.id, ())) for cell in cells
        ]
    cells += [Cell(entry, "deleted", None, None, False) for entry in planned.cells if entry.id in deleted]
    cells += [cell for entry in gone if (cell := _cell(entry, runs, submissions, by, left=True)).state != "missing"]
    sign = -1.0 if planned.goal == "max" else 1.0

    def place(cell: Cell) -> tuple[int, int, float]:
        rung = cell.rungs[-1].rung if cell.rungs else 0
        return (cell.left, -rung, sign * cell.value) if cell.is_measured and cell.value is not None else (2, 0, 0.0)

    cells.sort(key=place)
    current = [cell for cell in cells if not cell.left]
    return SweepView(
        sweep=sweep,
        metric=by,
        goal=planned.goal,
        cells=tuple(cells),
        pruned=pruned,
        filtered=planned.filtered,
        repeated=planned.repeated,
        axes=axes_of([cell.entry.values for cell in current]),
        metrics=metrics,
        states=dict(Counter(cell.state for cell in current).most_common()),
        eta=_eta(current),
        search=search,
    )


@dataclass(frozen=True)
class Comparison:
    """By what a sweep compares its cells, as its ledger says. `metric`: None for the usual one. `cells`: the runs of
    those that it has now, as `name/run_id`.
    """

    metric: str | None = None
    goal: str = "min"
    cells: frozenset[str] = frozenset()


def comparison_of(sweep: SweepDir) -> Comparison | None:
    """Read it, once for each state of the ledger; None where it cannot be read."""
    found, _ = readable(lambda: _comparison(sweep, (seen := sweep.ledger.stat()).st_mtime_ns, seen.st_size))
    return found


@lru_cache(maxsize=256)
def _comparison(sweep: SweepDir, time: int, size: int) -> Comparison:
    planned = sweep.planned()
    return Comparison(planned.metric, planned.goal, frozenset(entry.run for entry in planned.cells))


def best_of(runs: Sequence[RunSummary], by: Comparison | None) -> RunSummary | None:
    """The best of some runs of a sweep, of those that are its cells now; None where none has a value. `by`: None where
    the sweep's ledger says nothing.
    """
    goal = "min" if by is None else by.goal
    metric = by.metric if by is not None and by.metric else usual_metric({key for run in runs for key in run.values})
    found = [
        (run.values[metric], run)
        for run in runs
        if (by is None or run.key in by.cells) and math.isfinite(run.values.get(metric, math.nan))
    ]
    chosen = max if goal == "max" else min
    return chosen(found, key=lambda pair: pair[0])[1] if found else None


def usual_metric(measured: Collection[str]) -> str:
    """What cells are compared by where nothing is said. `measured`: what any of them has measured."""
    return "validation/loss" if "validation/loss" in measured else "train/loss"


def importance_of(view: SweepView) -> tuple[Importance, Cell | None]:
    """Which parameters matter among the cells that completed, of a search among all at its first rung; and the cell
    that makes most of the variance alone.

    Cells that are not done would be compared at different steps.
    """
    is_searched = view.search is not None and view.metric == view.search.metric
    done = [(cell, cell.value) for cell in view.measured if cell.state == "completed"]
    first = [(cell, cell.rungs[0].value) for cell in view.current if cell.rungs]
    compared = [(cell, value) for cell, value in (first if is_searched else done) if value is not None]
    found = importance([Point(cell.entry.values, value, cell.spread(view.metric)) for cell, value in compared])
    return found, compared[found.dominating][0] if found.dominating is not None else None


def _cell(
    entry: Entry,
    runs: Mapping[str, RunSummary],
    submissions: Mapping[str, Submission],
    metric: str,
    *,
    left: bool,
    search: History | None = None,
) -> Cell:
    run = runs.get(entry.run)
    if run is None:
        return Cell(entry, "missing", None, None, left)
    waits = search is not None and search.waits(entry.id)
    state = cell_state(run.state, run.launched, submissions.get(entry.id), in_search=waits)
    return Cell(entry, state, run, run.values.get(metric), left)


def _reasons(planned: SweepPlan) -> tuple[Reason, ...]:
    """The pruned points, those with the same reason together, the most frequent first."""
    names: dict[str, list[str]] = {}
    for point in planned.pruned:
        names.setdefault(str(point["reason"]), []).append(str(point["name"]))
    return tuple(Reason(reason, tuple(each)) for reason, each in sorted(names.items(), key=lambda item: -len(item[1])))


def _eta(cells: Sequence[Cell]) -> float | None:
    """Running cells tell what they have left; one that waits takes as long as those that are done took, by the median,
    or as a running one in all. As many run at a time as do now.
    """
    running = [cell.run for cell in cells if cell.state == "running" and cell.run is not None]
    rests = [run.eta for run in running if run.eta is not None]
    if not rests:
        return None
    waiting = sum(cell.state == "pending" for cell in cells)
    took = [
        cell.run.ended - cell.run.launched
        for cell in cells
        if cell.state == "completed" and cell.run is not None and cell.run.ended and cell.run.launched
    ]
    if not took:
        took = [run.eta / (1 - done) for run in running if run.eta is not None and (done := run.progress or 0.0) < 1]
    if waiting and not took:
        return None
    return max(max(rests), (sum(rests) + (waiting * statistics.median(took) if waiting else 0.0)) / len(running))


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
