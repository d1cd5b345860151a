"""From the cells of a sweep to their run directories and the ledger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.launch.code import code_state
from orchestrator.launch.runs import create_run, next_run_dir, refuse_lost_spec, remove_new_run
from orchestrator.rundir import RunDir, write_atomically
from orchestrator.spec.canonical import config_hash
from orchestrator.spec.job import JobSpec
from orchestrator.sweeps.cells import Cell
from orchestrator.sweeps.ledger import Entry, Planned, SweepDir, same_cells
from orchestrator.sweeps.loading import LoadedSweep


def run_of(job: JobSpec, runs_dir: Path) -> RunDir | None:
    """The latest run whose spec is this very one, among those that began with it; without reading other runs. Raises
    UserError where one of these has checkpoints and has lost its spec: the cell would do its work again.
    """
    end = next_run_dir(job, runs_dir).run_id
    base, _, number = end.partition("-")
    for count in reversed(range(1, int(number or 1))):
        run = RunDir(runs_dir.absolute() / job.name / (base if count == 1 else f"{base}-{count}"))
        if _spec_hash(run) == job.config_hash:
            return run
    refuse_lost_spec(job, runs_dir, "move that folder away, and the cell begins at iteration 0")
    return None


def _spec_hash(run: RunDir) -> str | None:
    """The hash of a run's current spec; None where it cannot be read."""
    try:
        return config_hash(json.loads(run.resolved().read_bytes()))
    except (OSError, ValueError, UserError):
        return None


def planned_run(job: JobSpec, runs_dir: Path) -> RunDir:
    """The run directory of a cell: the one it has, or the one it would get."""
    return run_of(job, runs_dir) or next_run_dir(job, runs_dir)


def write_plan(sweep: SweepDir, loaded: LoadedSweep) -> tuple[Planned, list[RunDir]]:
    """Give every cell a run directory and write down what the sweep is now; also the runs that are new. The same sweep
    again changes nothing, and neither does one that is refused.
    """
    code = None
    entries, new = [], []
    before = [run_of(cell.job, sweep.runs_dir) for cell in loaded.cells.cells]
    for cell, found in zip(loaded.cells.cells, before, strict=True):
        run = found
        if run is None:
            sweep.path.mkdir(parents=True, exist_ok=True)
            code = code or code_state(Path.cwd(), apart_from=sweep.runs_dir, scratch=sweep.path)
            run = create_run(cell.job, cell.loaded.text, sweep.runs_dir, code)
            new.append(run)
        _join(run, sweep, cell, is_new=found is None)
        entries.append(Entry(cell.id, cell.name, cell.values, str(run.path.relative_to(sweep.runs_dir))))
    planned = Planned(
        generation=sweep.next_generation(),
        metric=loaded.spec.metric,
        goal=loaded.spec.goal,
        cells=entries,
        pruned=[{"name": cell.name, "values": cell.values, "reason": cell.reason} for cell in loaded.cells.pruned],
        filtered=loaded.cells.filtered,
        repeated=loaded.cells.repeated,
    )
    if not sweep.is_planned or not same_cells(sweep.planned(), planned):
        sweep.plan(planned, loaded.text)
    return planned, new


def withdraw_plan(sweep: SweepDir, planned: Planned, new: Sequence[RunDir]) -> None:
    """Take back a plan of which nothing was started: the sweep is what it was before, and its `new` runs are gone."""
    if sweep.is_planned and sweep.planned().generation == planned.generation:
        sweep.append("withdrawn", generation=planned.generation)
    for run in new:
        remove_new_run(run)


def _join(run: RunDir, sweep: SweepDir, cell: Cell, *, is_new: bool) -> None:
    """Note in a run directory which sweep it belongs to, and whether it was there before; the first one keeps it."""
    if not run.membership.exists():
        record = {"sweep": sweep.name, "sweep_dir": str(sweep.path), "cell": cell.name, "values": cell.values}
        adopted = {} if is_new else {"adopted": True}
        write_atomically(run.membership, json.dumps({**record, **adopted}, indent=1) + "\n")
