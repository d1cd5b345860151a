"""Telling once that a whole sweep has ended: `python -m orchestrator.sweeps.ending SWEEP_DIR`, started by each cell
that ends on a cluster, and by the driver of cells on this machine.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import OrchestratorError
from orchestrator.launch.notifications.channels import send
from orchestrator.launch.notifications.notice import Notice
from orchestrator.launch.notifications.occasions import occasion_of
from orchestrator.launch.notifications.process import longest, start_telling
from orchestrator.run_directory.events.ledger import SweepNotified
from orchestrator.run_directory.lease import read_holder
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved
from orchestrator.spec.sections.notifications import Occasion
from orchestrator.sweeps.ledger import SweepDir, SweepPlan
from orchestrator.sweeps.states import UNDER_WAY, CellStatus, State, cell_statuses, counts, metric_of, ranked
from orchestrator.tracking.redaction import Redactor

MODULE = "orchestrator.sweeps.ending"
_OVER: dict[Occasion, State] = {"completed": "completed", "failed": "failed", "stopped": "stopped"}
_MOST_NAMED = 20


def tell_of_sweep(sweep: SweepDir, *, wait: bool) -> None:
    """Start the process that tells, where the sweep's job names somebody; it finds out whether all cells have ended.
    `wait`, for a bounded time, where it is ended with this process. Nothing of that fails a cell.
    """
    try:
        job = _job(sweep, sweep.planned())
    except (OrchestratorError, OSError) as error:
        print(f"no notification is sent for the sweep: {error}", file=sys.stderr)
        return
    if job is None or not job.notifications.ways:
        return
    notifier = start_telling(MODULE, [str(sweep.path)], sweep.path, subprocess.DEVNULL)
    if notifier is not None and wait:
        with contextlib.suppress(subprocess.TimeoutExpired):
            notifier.wait(longest(job))
    elif notifier is not None:
        notifier.returncode = 0  # it goes on by itself, and nobody will ask how it went


def main() -> int:
    """Tell, when this was the last cell; returns the exit code, which nobody reads."""
    sweep = SweepDir(Path(sys.argv[1]))
    try:
        planned = sweep.planned()
        job = _job(sweep, planned)
        if job is None or any(_is_training(sweep.run(entry)) for entry in reversed(planned.cells)):
            return 0
        cells = [_by_its_own_word(cell) for cell in cell_statuses(sweep, planned)]
        if any(cell.state in UNDER_WAY for cell in cells):
            return 0
        notice = notice_of_sweep(sweep, planned, cells)
        notice = replace(notice, text=Redactor.of_spec(job.model_dump(mode="json"))(notice.text))
        if notice.occasion in job.notifications.when and _is_ours_to_tell(sweep):
            failed = send(job.notifications, notice, sweep.path)
            told = tuple(way for way in job.notifications.ways if way not in failed)
            sweep.append(SweepNotified(occasion=notice.occasion, told=told, failed=failed))
    except (OrchestratorError, OSError) as error:
        print(f"nobody was told: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, OrchestratorError) else 1
    return 0


def notice_of_sweep(sweep: SweepDir, planned: SweepPlan, cells: Sequence[CellStatus]) -> Notice:
    """How the cells of a sweep ended, all of them."""
    number = counts(cells)
    failed = [cell for cell in cells if cell.state == "failed"]
    occasion: Occasion = "failed" if failed else "completed" if number.get("completed") else "stopped"
    metric = metric_of(planned, cells)
    best = next(iter(ranked([cell for cell in cells if cell.state == "completed"], metric, planned.goal)), None)
    value = best.value(metric) if best is not None else None
    if value is not None and not math.isfinite(value):
        best = value = None
    said = ", ".join(f"{count} {state}" for state, count in number.items())
    lines = [f"sweep {sweep.name} has ended: {len(cells)} cells: {said}"]
    if best is not None and value is not None:
        lines.append(f"best {metric}: {value:.6g} of {best.entry.name}")
    lines += [f"{cell.entry.name}: {cell.status.describe()}" for cell in failed[:_MOST_NAMED]]
    facts = {
        "sweep": sweep.name,
        "sweep_dir": str(sweep.path),
        "cells": len(cells),
        **{state: number.get(state, 0) for state in ("completed", "failed", "stopped", "cancelled")},
        "failed_cells": [cell.entry.name for cell in failed[:_MOST_NAMED]],
        "metric": metric,
        "best_cell": best.entry.name if best else None,
        "best_value": value,
    }
    return Notice(occasion, "\n".join([*lines, str(sweep.path)]), facts, "sweep")


def _job(sweep: SweepDir, planned: SweepPlan) -> JobSpec | None:
    """The job of a cell that was started: all tell the same people."""
    runs = (sweep.run(entry) for entry in planned.cells)
    started = next((run for run in runs if run.resolved_generations()), None)
    return load_resolved(started.resolved()) if started is not None else None


def _is_training(run: RunDir) -> bool:
    """Whether it surely is under way. The one that was planned last tells most often, so that a cell that ends early
    reads a few files and not those of all cells.
    """
    events = run.events().since_submission()
    last = events.last_launch
    if last is None or occasion_of(events, last.launch_id) is not None:
        return False
    holder = read_holder(run)
    return holder is not None and holder.live


def _by_its_own_word(cell: CellStatus) -> CellStatus:
    """The cell as its run says: a scheduler takes it for running until the job that asks has ended."""
    events = cell.status.run.events().since_submission()
    last = events.last_launch
    occasion = occasion_of(events, last.launch_id) if last is not None else None
    return replace(cell, state=_OVER[occasion]) if occasion in _OVER and cell.state in UNDER_WAY else cell


def _is_ours_to_tell(sweep: SweepDir) -> bool:
    """Whether nobody has told of the cells that were started last: two that end at once both find that all have."""
    try:
        (sweep.path / f".told-{len(sweep.submissions_made())}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
