"""What `sweep run` and `submit --array` start: the cells of a sweep, or the search that draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import typer

from orchestrator.api.targets import TargetOptions, known_part_problems
from orchestrator.cli.runs.starts.interrupts import Interrupts
from orchestrator.cli.runs.sweeps.preview import show_dry_run
from orchestrator.cli.runs.sweeps.search import (
    begin_search,
    conclude_search,
    describe_search,
    refuse_other_search,
    search_of,
)
from orchestrator.cli.runs.sweeps.start import (
    begin,
    cells_continued,
    check_cells,
    check_room,
    cluster_of,
    conclude,
    interrupts_of_a_start,
    refusals,
    take_changes_of,
    warn_of_data,
    warn_of_dropped,
)
from orchestrator.cli.runs.sweeps.tables import describe_cells, why_no_cell
from orchestrator.errors import UserError
from orchestrator.launch.executor_protocol import is_started_here
from orchestrator.launch.runs import withdraw_generations
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.run_directory.events.ledger import CellsRestored
from orchestrator.run_directory.events.search import SearchPlanned
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.sweeps.cell_starts import examples_of, new_starts, starts_of
from orchestrator.sweeps.ledger import SweepDir, sweep_dir
from orchestrator.sweeps.loading import LoadedSweep, load_sweep
from orchestrator.sweeps.plans import CellRun, withdraw_plan, write_plan
from orchestrator.sweeps.states import cell_statuses, check_scheduler
from orchestrator.sweeps.submission import CellStart


@dataclass(frozen=True)
class SweepOptions:
    """The options of `sweep run`."""

    dry_run: bool = False
    max_parallel: int | None = None
    local: bool = False
    cluster: str | None = None
    detach: bool = False
    new: bool = False
    allow_changes: bool = False
    allow_warnings: bool = False
    deleted: bool = False


class _SweepRun(NamedTuple):
    """A sweep that is to be started, and how."""

    asked: SweepOptions
    as_json: bool
    loaded: LoadedSweep
    sweep: SweepDir
    profile: ClusterSpec | None
    parallel: int | None
    local: bool
    search: SearchPlanned | None
    examples: list[CellRun] | None
    """Cells such as the search may draw, where it draws them."""

    @property
    def jobs(self) -> list[JobSpec]:
        """Those of all cells."""
        return [cell.job for cell in self.loaded.cells.cells]

    def cells(self) -> list[CellRun]:
        """Every cell with the run that it continues. Warns of cells of before that the sweep does not have now."""
        if self.examples is not None:
            return self.examples
        asked = self.asked
        matched = cells_continued(
            self.sweep,
            self.loaded,
            new=asked.new,
            with_deleted=asked.deleted,
            allow_changes=asked.allow_changes,
            as_json=self.as_json,
            dry_run=asked.dry_run,
        )
        warn_of_dropped(self.sweep, [each.id for each in matched])
        return matched

    def preview(self) -> None:
        """Show what would be started."""
        matched = self.cells()
        warn_of_data(self.jobs)
        profile, parallel = self.profile, self.parallel
        show_dry_run(self.loaded, self.sweep, matched, profile, parallel, local=self.local, as_json=self.as_json)
        if self.search is not None and not self.as_json:
            above = "; the cells above are examples" if self.examples is not None else ""
            typer.echo(f"{describe_search(self.search, self.jobs[0])}{above}")

    def begin(self, interrupts: Interrupts) -> list[CellStart]:
        """Write the plan and start the cells, or the search. Where all is refused, nothing is left of the plan."""
        sweep, matched = self.sweep, self.cells()
        planned, new = write_plan(sweep, self.loaded, matched)
        if self.asked.deleted:
            sweep.append(CellsRestored(cells=tuple(each.id for each in matched)))
        before = len(sweep.submissions_made())
        taken: list[Path] = []
        try:
            found = cell_statuses(sweep, planned)
            check_scheduler(found)
            is_listed = self.examples is None
            starts = starts_of(matched, found) if is_listed else new_starts(matched, sweep.runs_dir)
            check_room(starts, self.profile, sweep.runs_dir, allowed=self.asked.allow_warnings)
            taken = take_changes_of(matched, found, as_json=self.as_json) if is_listed else []
            if not self.as_json and is_listed:
                typer.echo(describe_cells(self.loaded))
            if not self.as_json and self.search is not None:
                typer.echo(describe_search(self.search, self.jobs[0]))
            if self.search is not None:
                begin_search(sweep, self.search, interrupts)
            else:
                profile, parallel = self.profile, self.parallel
                begin(sweep, starts, profile, parallel, interrupts, local=self.local, as_json=self.as_json)
        except UserError:  # refused for certain; of other errors, some cells may be in the queue
            if len(sweep.submissions_made()) == before:
                withdraw_plan(sweep, planned, new)
                withdraw_generations(taken)
            raise
        return starts


def start_sweep(
    files: list[Path],
    overrides: list[str] | None,
    arrays: Sequence[str],
    asked: SweepOptions,
    runs_dir: Path | None,
    as_json: bool,
) -> None:
    """Start what there is to start of a sweep. `arrays`: values of fields from the command line."""
    found = _sweep_run(files, overrides, arrays, asked, runs_dir, as_json)
    if asked.dry_run:
        found.preview()
        return
    sweep = found.sweep
    check_cells(found.jobs, local=found.local)
    refuse_other_search(sweep, found.search)
    with interrupts_of_a_start() as interrupts:
        with sweep.alone():
            starts = found.begin(interrupts)
        wait = found.local and not asked.detach
        if found.search is not None:
            conclude_search(sweep, interrupts, wait=wait, as_json=as_json)
        else:
            conclude(sweep, starts, interrupts, wait=wait, as_json=as_json)


def _sweep_run(
    files: list[Path],
    overrides: list[str] | None,
    arrays: Sequence[str],
    asked: SweepOptions,
    runs_dir: Path | None,
    as_json: bool,
) -> _SweepRun:
    """Load the sweep. Raises UserError where it has no cell, and what its search or its cluster is refused with."""
    words = [*(overrides or []), *([f"launch.cluster={asked.cluster}"] if asked.cluster else [])]
    if asked.local:
        loaded = load_sweep(files, words, arrays=arrays)
    else:
        check, also = refusals(dry_run=asked.dry_run), partial(known_part_problems, TargetOptions())
        loaded = load_sweep(files, words, check, arrays, also)
    if not loaded.cells.cells:
        raise UserError(why_no_cell(loaded.cells), code="no_cells")
    job = loaded.cells.cells[0].job
    local = asked.local or is_started_here(job)
    profile = None if local else cluster_of(job, dry_run=asked.dry_run)
    sweep = sweep_dir(loaded.name, runs_dir_of(job, runs_dir).absolute())
    parallel = asked.max_parallel or loaded.spec.max_parallel
    search = search_of(loaded, files, words, profile, parallel, local=local)
    if search is not None:  # its metric is that of the sweep
        loaded = replace(loaded, spec=loaded.spec.model_copy(update={"metric": search.metric}))
    examples = examples_of(loaded) if loaded.draws_cells else None
    return _SweepRun(asked, as_json, loaded, sweep, profile, parallel, local, search, examples)
