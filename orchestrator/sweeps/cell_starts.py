"""Which cells of a sweep are started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.launch.continuation import has_steps_left
from orchestrator.spec.job import JobSpec
from orchestrator.sweeps.loading import LoadedSweep
from orchestrator.sweeps.plans import CellRun
from orchestrator.sweeps.states import STARTED_BY_RUN, CellStatus
from orchestrator.sweeps.submission import CellStart


def starts_of(matched: Sequence[CellRun], statuses: Sequence[CellStatus]) -> list[CellStart]:
    """The cells that `sweep run` starts: those that wait for it, and those that are done and were made longer."""
    cells = {each.id: each for each in matched}
    starts = []
    for status in statuses:
        cell = cells[status.entry.id]
        is_longer = cell.found is not None and has_steps_left(cell.found, status.status)
        if status.state in STARTED_BY_RUN or (status.state == "completed" and is_longer):
            starts.append(start_of(status, cell.job))
    return starts


def examples_of(loaded: LoadedSweep) -> list[CellRun]:
    """Cells such as a search may draw, which have no runs."""
    return [CellRun(cell, cell.id, None) for cell in loaded.cells.cells]


def new_starts(cells: Sequence[CellRun], runs_dir: Path) -> list[CellStart]:
    """Cells as they would be started, in the run directories that they would get."""
    return [CellStart(each.id, each.cell.name, each.job, each.place(runs_dir)) for each in cells]


def start_of(status: CellStatus, job: JobSpec) -> CellStart:
    """A cell as what is started."""
    return CellStart(status.entry.id, status.entry.name, job, status.status.run)
