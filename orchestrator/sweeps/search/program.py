"""The program of a search: it looks at the cells' runs, decides, and starts trials, here or through their executor.

A decision is in the ledger before anything is done about it, so that a program that was killed in between does that
when it is started again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cluster_profiles import load_profile
from orchestrator.errors import Problem, SchedulerError, UserError
from orchestrator.planning.checks.limits import what_is_refused
from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import Plan
from orchestrator.planning.verdict import too_large
from orchestrator.process import Process
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.events.ledger import CellsSubmitted, LedgerEvent
from orchestrator.run_directory.events.search import (
    SearchEnded,
    SearchStarted,
    TrialPromoted,
    TrialStarted,
    TrialStopped,
    TrialWithdrawn,
)
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved
from orchestrator.sweeps.ending import tell_of_sweep
from orchestrator.sweeps.executor import LocalCells
from orchestrator.sweeps.ledger import Entry, SweepDir
from orchestrator.sweeps.loading import load_sweep
from orchestrator.sweeps.search.budgets import iteration_at
from orchestrator.sweeps.search.halving import Move, Trial
from orchestrator.sweeps.search.history import History
from orchestrator.sweeps.search.measurement import failed, has_reached, reached
from orchestrator.sweeps.states import UNDER_WAY, CellStatus, State, cell_state, check_scheduler, entry_statuses
from orchestrator.sweeps.submission import CellStart, SweepStart, local_request, submit_cells, visible_gpus

if TYPE_CHECKING:
    from orchestrator.sweeps.search.drawing import Drawing

_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_QUESTIONS = 5.0
"""To a scheduler."""


def search(sweep: SweepDir, module: str) -> None:
    """Search until the search is over, cancelled or in trouble. `module`: the training program.

    Raises UserError when another program does, and for what keeps the search from going on.
    """
    with sweep.searching():
        sweep.append(SearchStarted(driver=Process.current().to_record()))
        try:
            history = _history(sweep)
            os.chdir(history.planned.folder or ".")
            cancelled = _Search.of(sweep, history, module).run()
        except UserError as error:
            sweep.append(SearchEnded(problem=str(error).splitlines()[0]))
            raise
        sweep.append(SearchEnded(cancelled=cancelled or None))
        tell_of_sweep(sweep, wait=False)


def _history(sweep: SweepDir) -> History:
    history = sweep.search()
    if history is None:
        raise UserError(f"{sweep.path} has no search")
    return history


@dataclass
class _Search:
    sweep: SweepDir
    module: str
    local: LocalCells | None
    """None where an executor has the trials."""
    cluster: ClusterSpec | None
    drawing: Drawing | None
    """None where the cells are those of the sweep's file."""
    began: float
    cancels: int
    """How often cells had been cancelled when this began."""

    @classmethod
    def of(cls, sweep: SweepDir, history: History, module: str) -> _Search:
        planned = history.planned
        cluster = load_profile(planned.cluster) if planned.cluster is not None else None
        here = LocalCells(sweep, visible_gpus(), 0) if planned.local else None
        drawing = None
        if history.rules.strategy == "bayesian":
            from orchestrator.sweeps.search.drawing import Drawing  # imports Optuna, which other searches do without

            files = [Path(file) for file in planned.files or ()]
            drawing = Drawing(sweep, load_sweep(files, planned.overrides or (), _refusals(cluster)))
        return cls(
            sweep=sweep,
            module=module,
            local=here,
            cluster=cluster,
            drawing=drawing,
            began=time.time(),
            cancels=sweep.cancellations(),
        )

    def run(self) -> bool:
        """Until there is nothing more to do; whether a person has cancelled the search."""
        while True:
            cancelled = self.sweep.cancellations() > self.cancels
            if self._look(cancelled):
                return cancelled
            time.sleep(_SECONDS_BETWEEN_LOOKS if self.local is not None else _SECONDS_BETWEEN_QUESTIONS)

    def _look(self, cancelled: bool) -> bool:
        """Take note of what trials have come to, decide, and start what is to be started. Whether that was all."""
        history = _history(self.sweep)
        trials = [trial for trial in history.trials.values() if trial.is_open]
        entries = {entry.id: entry for entry in self.sweep.planned().cells}
        statuses = entry_statuses(self.sweep, [entries[trial.cell] for trial in trials])
        if self.local is not None:
            self.local.settle()
        try:
            check_scheduler(statuses)
        except SchedulerError as error:
            print(f"the scheduler is asked again: {error}", flush=True)
            return False
        active, idle = [], []
        for trial, status in zip(trials, statuses, strict=True):
            if self._is_active(status):
                active.append(trial)
            elif (event := self._end(history, trial, status)) is not None:
                self.sweep.append(event)
            else:
                idle.append(trial)
        if self.local is not None:
            adopted = [trial.cell for trial in active if trial.cell not in self.local.running]
            self.local.others = {cell: list(history.devices.get(cell, ())) for cell in adopted}
        history = self._stop_trials()
        if cancelled:
            return not active
        starts = [Move(trial, trial.budget or 0) for trial in idle]
        parallel = history.planned.parallel or max(history.planned.trials or 0, 1)
        free = max(parallel - len(active), 0)
        history = self._draw_trials(history, free - len(starts))
        starts += history.rules.moves(list(history.trials.values()), max(free - len(starts), 0))
        self._start(history, starts[:free])
        return not active and not starts and history.rules.is_over(list(history.trials.values()))

    def _stop_trials(self) -> History:
        """Write down which trials are not promoted; the search with that."""
        history = _history(self.sweep)
        for place in history.rules.stops(list(history.trials.values())):
            trial = place.trial
            self.sweep.append(
                TrialStopped(
                    cell=trial.cell,
                    rung=place.rung,
                    iteration=history.iterations[trial.cell, place.rung],
                    value=trial.results[place.rung],
                    rank=place.rank,
                    of=place.of,
                )
            )
            trial.stopped = place.rung
        return history

    def _draw_trials(self, history: History, free: int) -> History:
        """Draw trials for the places that are free; the search with them."""
        while self.drawing is not None and len(history.draws) < (history.planned.trials or 0):
            if sum(trial.budget is None for trial in history.trials.values()) >= free:
                break
            self.drawing.draw(history)
            history = _history(self.sweep)
        return history

    def _is_active(self, status: CellStatus) -> bool:
        if self.local is not None and status.entry.id in self.local.running:
            return True
        return _state(status) in UNDER_WAY and not self._never_began(status)

    def _never_began(self, status: CellStatus) -> bool:
        """Whether the program that was to start a run here has ended without that."""
        return self.local is not None and _state(status) == "pending" and status.status.state != "queued"

    def _end(self, history: History, trial: Trial, status: CellStatus) -> LedgerEvent | None:
        """What has become of an open trial that is not under way; None for one that is to be started."""
        assert trial.budget is not None
        run, state = status.status.run, _state(status)
        job = load_resolved(run.resolved())
        iteration = self._iteration(history, job, trial.budget)
        if state == "completed" or has_reached(status.status, iteration):
            return reached(run, trial, iteration, history.metric)
        if state == "failed":
            return failed(trial, iteration, status.status.cause or "lost")
        if self._never_began(status):
            submission = status.submission
            is_ours = submission is not None and submission.driver == Process.current()
            return failed(trial, iteration, f"it did not start: see {run.launcher_log}") if is_ours else None
        newest = max(status.status.ended or 0.0, status.submission.time if status.submission is not None else 0.0)
        if state in ("stopped", "cancelled") and newest > self.began:
            return TrialWithdrawn(cell=trial.cell)
        return None

    def _iteration(self, history: History, job: JobSpec, rung: int) -> int:
        shares = history.planned.shares or []
        return iteration_at(job, shares[rung], history.metric)

    def _start(self, history: History, moves: Sequence[Move]) -> None:
        """Start trials, those of an executor together."""
        entries = {entry.id: entry for entry in self.sweep.planned().cells}
        starts = []
        for move in moves:
            start = self._cell_start(history, move, entries[move.trial.cell])
            task = None
            devices: list[str] | None = None
            if self.local is not None:
                [task] = local_request(self.sweep, [start], max_parallel=None, module=self.module).arrays[0].tasks
                devices = self.local.room_for(task)
                if devices is None:
                    break
            if (place := move.place) is not None:
                promoted = TrialPromoted(cell=start.id, rung=move.rung, rank=place.rank, of=place.of)
                self.sweep.append(promoted)
            iteration = self._iteration(history, start.job, move.rung)
            given = tuple(devices) if devices else None
            self.sweep.append(TrialStarted(cell=start.id, rung=move.rung, iteration=iteration, devices=given))
            if any(commit.iteration >= iteration for commit in committed(start.run)):
                continue  # it has a run that had come so far before this search
            if self.local is not None and task is not None:
                driver = Process.current().to_record()
                jobs = {start.id: "local"}
                event = CellsSubmitted(
                    how="local", cluster=None, max_parallel=history.planned.parallel, jobs=jobs, driver=driver
                )
                self.sweep.append(event)
                self.local.start(task)
            else:
                starts.append(start)
        if starts:
            try:
                submit_cells(SweepStart(self.sweep, starts, self.cluster, None, module=self.module))
            except SchedulerError as error:
                print(f"trials are submitted again: {error}", flush=True)

    def _cell_start(self, history: History, move: Move, entry: Entry) -> CellStart:
        run = self.sweep.run(entry)
        if self.drawing is not None:
            self.drawing.make_run(history, move.trial, run)
        job = load_resolved(run.resolved())
        is_last = move.rung == history.rules.rungs - 1
        stop_at = None if is_last else self._iteration(history, job, move.rung)
        return CellStart(entry.id, entry.name, job, run, stop_at, of_search=True)


def _state(status: CellStatus) -> State:
    """The state of a cell without what is known of its search, which this program itself is."""
    return cell_state(status.status.state, status.status.launched, status.submission)


def _refusals(cluster: ClusterSpec | None) -> Callable[[Plan], Sequence[Problem]]:
    """Says why a trial that was drawn cannot run on a cluster."""
    if cluster is None:
        return lambda plan: ()
    return lambda plan: [*what_is_refused(plan.job, cluster), *too_large(forecast(plan, cluster))]
