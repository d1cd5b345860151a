"""From the cells of a sweep to their run directories and the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.launch.code.code_version import code_state
from orchestrator.launch.continuation import Continuation, continued_with, refuse_troubles, with_unwritten
from orchestrator.launch.runs import create_run, next_run_dir, refuse_lost_spec, remove_new_run, saved_up_to, written_of
from orchestrator.launch.states.run_states import RunStatus, readable_statuses
from orchestrator.run_directory.events.ledger import PlanWithdrawn
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved
from orchestrator.spec.schema.canonical import config_hash
from orchestrator.sweeps.cells import Cell
from orchestrator.sweeps.ledger import Entry, SweepDir, SweepPlan, same_cells
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
        return config_hash(run.read_json(run.resolved()))
    except (OSError, ValueError, TypeError, AttributeError, UserError):
        return None


@dataclass(frozen=True)
class CellRun:
    """A cell, and the run that it has; None for one that is new. `id`: that of its entry in the ledger, which a cell
    keeps that goes on with changes. `deleted`: that entry, of a cell whose run was deleted and does not begin anew.
    """

    cell: Cell
    id: str
    found: Continuation | None
    deleted: Entry | None = None

    @property
    def job(self) -> JobSpec:
        """What it trains."""
        return self.cell.job if self.found is None else self.found.job

    def place(self, runs_dir: Path) -> RunDir:
        """Its run directory: the one it has, or the one it would get."""
        return next_run_dir(self.cell.job, runs_dir) if self.found is None else self.found.run


def match_cells(
    sweep: SweepDir, loaded: LoadedSweep, *, new: bool = False, with_deleted: bool = False
) -> list[CellRun]:
    """The run that each cell has: one of its very spec, or that of the cell with the same values when the sweep was
    started last. With `new`, the first only. A deleted cell gets no run, but for `with_deleted`. Raises UserError where
    a run has saved and has lost its spec, or its state cannot be read.
    """
    entries = [*sweep.left(), *sweep.planned().cells] if sweep.is_planned else []
    deleted = set() if with_deleted else sweep.deleted(entries)
    by_id = {entry.id: entry for entry in entries}
    earlier = {} if new else {_key(entry.values): entry for entry in entries}
    matched, open_ = [], dict[str, Entry]()
    for cell in loaded.cells.cells:
        before = by_id.get(cell.id) or earlier.get(_key(cell.values))
        if before is not None and before.id in deleted:
            matched.append(CellRun(cell, before.id, None, before))
            continue
        same = run_of(cell.job, sweep.runs_dir)
        matched.append(CellRun(cell, cell.id, None if same is None else Continuation(same, cell.job)))
        if same is None and (entry := earlier.get(_key(cell.values))) is not None:
            open_[cell.id] = entry
    readable, troubles = readable_statuses([sweep.run(entry) for entry in open_.values()])
    refuse_troubles(troubles, "start other runs at iteration 0 with --new")
    statuses = {status.run: status for status in readable}
    return [
        _continued(each, open_[each.id], statuses.get(sweep.run(open_[each.id]))) if each.id in open_ else each
        for each in matched
    ]


def _key(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(values.items()))


def _continued(matched: CellRun, entry: Entry, status: RunStatus | None) -> CellRun:
    """The cell with the run of an earlier entry, where that has something to go on with."""
    if status is None or not status.run.path.exists():
        return matched
    cell = matched.cell
    try:
        spec = load_resolved(status.run.resolved())
    except UserError as error:
        if (saved := saved_up_to(status.run)) is None:
            return matched
        raise UserError(
            f"cell {cell.name}: run {status.run.path} has saved checkpoints up to iteration {saved}, but its spec "
            f"cannot be read: {str(error).splitlines()[0]}.\n"
            "      Restore that file to continue it, or start another run at iteration 0 with --new.",
            code="cell_cannot_continue",
        ) from error
    job = with_unwritten(spec, cell.job, written_of(status.run), cell.loaded.text)
    found = continued_with(status, spec, job)
    return matched if found is None else CellRun(cell, entry.id, found)


def write_plan(
    sweep: SweepDir, loaded: LoadedSweep, matched: Sequence[CellRun] | None = None
) -> tuple[SweepPlan, list[RunDir]]:
    """Give every cell a run directory and write down what the sweep is now; also the runs that are new. The same sweep
    again changes nothing, and neither does one that is refused.
    """
    if loaded.draws_cells:
        return _plan_drawn(sweep, loaded), []
    code = None
    entries, new = [], []
    matched = match_cells(sweep, loaded) if matched is None else matched
    for each in matched:
        cell = each.cell
        if each.deleted is not None:
            entries.append(Entry(each.id, cell.name, cell.values, each.deleted.run))
            continue
        if each.found is None:
            sweep.path.mkdir(parents=True, exist_ok=True)
            code = code or code_state(Path.cwd(), apart_from=sweep.runs_dir, scratch=sweep.path)
            run = create_run(cell.job, cell.loaded.text, sweep.runs_dir, code)
            new.append(run)
        else:
            run = each.found.run
        join(run, sweep, cell, is_new=each.found is None)
        entries.append(Entry(each.id, cell.name, cell.values, str(run.path.relative_to(sweep.runs_dir))))
    planned = SweepPlan(
        generation=sweep.next_generation(),
        metric=loaded.spec.metric,
        goal=loaded.spec.goal,
        cells=entries,
        pruned=[{"name": cell.name, "values": cell.values, "reason": cell.reason} for cell in loaded.cells.pruned],
        filtered=loaded.cells.filtered,
        repeated=loaded.cells.repeated,
    )
    edited = any(each.found is not None and each.found.changes for each in matched)
    is_same = sweep.is_planned and same_cells(sweep.planned(), planned)
    if not is_same or (edited and not sweep.is_written_as(loaded.text)):
        sweep.plan(planned, loaded.text)
    return planned, new


def _plan_drawn(sweep: SweepDir, loaded: LoadedSweep) -> SweepPlan:
    """Write down a sweep whose cells a search draws: those that it has drawn stay. Raises UserError where their job has
    become another one since.
    """
    search = sweep.search()
    drawn = [each for each in search.draws if each.cell is not None] if search is not None else []
    for each in drawn[:1]:
        cell = loaded.cell_at({str(name): value for name, value in (each.draws or {}).items()})
        if not isinstance(cell, Cell) or cell.id != (each.cell or {}).get("id"):
            raise UserError(
                f"the job of sweep {sweep.name} has changed since its search drew {len(drawn)} cells: give this one "
                "its own name (sweep.name)",
                code="search_job_changed",
            )
    planned = SweepPlan(
        generation=sweep.next_generation(),
        metric=loaded.spec.metric,
        goal=loaded.spec.goal,
        cells=sweep.planned().cells if drawn else [],
    )
    if not sweep.is_planned or not same_cells(sweep.planned(), planned):
        sweep.plan(planned, loaded.text)
    return planned


def withdraw_plan(sweep: SweepDir, planned: SweepPlan, new: Sequence[RunDir]) -> None:
    """Take back a plan of which nothing was started: the sweep is what it was before, and its `new` runs are gone."""
    if sweep.is_planned and sweep.planned().generation == planned.generation:
        sweep.append(PlanWithdrawn(generation=planned.generation))
    for run in new:
        remove_new_run(run)


def join(run: RunDir, sweep: SweepDir, cell: Cell, *, is_new: bool) -> None:
    """Note in a run directory which sweep it belongs to, and whether it was there before; the first one keeps it."""
    if not run.membership.exists():
        record = {"sweep": sweep.name, "sweep_dir": str(sweep.path), "cell": cell.name, "values": cell.values}
        adopted = {} if is_new else {"adopted": True}
        write_atomically(run.membership, json.dumps({**record, **adopted}, indent=1) + "\n")
