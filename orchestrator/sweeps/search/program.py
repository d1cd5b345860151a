"""The program of a search: it looks at the cells' runs, decides, and starts trials, here or through their executor.

A decision is in the ledger before anything is done about it, so that a program that was killed in between does that
when it is started again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import SchedulerError, SweepIsHeld, UserError
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.events.ledger import LedgerEvent
from orchestrator.run_directory.events.search import (
    SearchEnded,
    SearchStarted,
    TrialPromoted,
    TrialStarted,
    TrialStopped,
    TrialWithdrawn,
)
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved
from orchestrator.sweeps.ending import tell_of_sweep
from orchestrator.sweeps.ledger import Entry, SweepDir
from orchestrator.sweeps.search.budgets import iteration_at
from orchestrator.sweeps.search.halving import Move, Trial
from orchestrator.sweeps.search.history import History
from orchestrator.sweeps.search.measurement import failed, has_reached, reached
from orchestrator.sweeps.search.training import Trainer
from orchestrator.sweeps.states import UNDER_WAY, CellStatus, State, cell_state, check_scheduler, entry_statuses
from orchestrator.sweeps.submission import CellStart

if TYPE_CHECKING:
    from orchestrator.sweeps.search.drawing import Drawing


def search(sweep: SweepDir, trainer: Trainer, drawing: Drawing | None = None) -> None:
    """Search until the search is over, cancelled or in trouble. `drawing`: of a search that draws its cells.

    Raises UserError when another program does, and for what keeps the search from going on.
    """
    with sweep.searching():
        sweep.append(SearchStarted(driver=trainer.process.to_record()))
        try:
            _Search(sweep, trainer, drawing, time.time(), sweep.cancellations()).run()
        except UserError as error:
            sweep.append(SearchEnded(problem=str(error).splitlines()[0]))
            raise
    tell_of_sweep(sweep, wait=False)


def _history(sweep: SweepDir) -> History:
    history = sweep.search()
    if history is None:
        raise UserError(f"{sweep.path} has no search", code="no_search")
    return history


@dataclass(frozen=True)
class _Search:
    sweep: SweepDir
    trainer: Trainer
    drawing: Drawing | None
    began: float
    cancels: int
    """How often cells had been cancelled when this began."""

    def run(self) -> None:
        """Search until there is nothing more to do, or a person has cancelled the search, and write that down."""
        while True:
            cancelled = self.sweep.cancellations() > self.cancels
            if self._look(cancelled) and self._end_search(cancelled):
                return
            time.sleep(self.trainer.seconds)

    def _end_search(self, cancelled: bool) -> bool:
        """Write down that the search has ended, unless a command has given it more to do meanwhile, or does so now."""
        with suppress(SweepIsHeld), self.sweep.alone():
            if cancelled or self._is_over(_history(self.sweep)):
                self.sweep.append(SearchEnded(cancelled=cancelled or None))
                return True
        return False

    def _is_over(self, history: History) -> bool:
        has_drawn = self.drawing is None or len(history.draws) >= (history.planned.trials or 0)
        return has_drawn and history.rules.is_over(list(history.trials.values()))

    def _look(self, cancelled: bool) -> bool:
        """Take note of what trials have come to, decide, and start what is to be started. Whether that was all."""
        history = _history(self.sweep)
        trials = [trial for trial in history.trials.values() if trial.is_open]
        entries = {entry.id: entry for entry in self.sweep.planned().cells}
        running = self.trainer.running()  # first: what ends while the runs are read counts at the next look
        statuses = entry_statuses(self.sweep, [entries[trial.cell] for trial in trials])
        try:
            check_scheduler(statuses)
        except SchedulerError as error:
            print(f"the scheduler is asked again: {error}", flush=True)
            return False
        active, idle = [], []
        for trial, status in zip(trials, statuses, strict=True):
            if trial.cell in running or (_state(status) in UNDER_WAY and not self._never_began(status)):
                active.append(trial)
            elif (event := self._end(history, trial, status)) is not None:
                self.sweep.append(event)
            else:
                idle.append(trial)
        adopted = [trial.cell for trial in active if trial.cell not in running]
        self.trainer.adopt({cell: history.devices.get(cell, ()) for cell in adopted})
        history = self._stop_trials()
        if cancelled:
            return not active
        starts = [Move(trial, trial.budget or 0) for trial in idle]
        parallel = history.planned.parallel or max(history.planned.trials or 0, 1)
        free = max(parallel - len(active), 0)
        history = self._draw_trials(history, free - len(starts))
        starts += history.rules.moves(list(history.trials.values()), max(free - len(starts), 0))
        self._start(history, starts[:free])
        return not active and not starts and self._is_over(history)

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

    def _never_began(self, status: CellStatus) -> bool:
        """Whether the program that was to start a run here has ended without that."""
        return self.trainer.is_here and _state(status) == "pending" and status.status.state != "queued"

    def _end(self, history: History, trial: Trial, status: CellStatus) -> LedgerEvent | None:
        """What has become of an open trial that is not under way; None for one that is to be started."""
        assert trial.budget is not None
        run, state = status.status.run, _state(status)
        if not run.path.exists():
            return TrialWithdrawn(cell=trial.cell)
        job = load_resolved(run.resolved())
        iteration = self._iteration(history, job, trial.budget)
        if state == "completed" or has_reached(status.status, iteration):
            return reached(run, trial, iteration, history.metric)
        started = status.submission.time if status.submission is not None else 0.0
        if state == "failed" and max(status.status.launched or 0.0, started) > history.retried.get(trial.cell, -1.0):
            return failed(trial, iteration, status.status.cause or "lost")
        if self._never_began(status):
            submission = status.submission
            is_ours = submission is not None and submission.driver == self.trainer.process
            return failed(trial, iteration, f"it did not start: see {run.launcher_log}") if is_ours else None
        if state in ("stopped", "cancelled") and max(status.status.ended or 0.0, started) > self.began:
            return TrialWithdrawn(cell=trial.cell)
        return None

    def _iteration(self, history: History, job: JobSpec, rung: int) -> int:
        shares = history.planned.shares or []
        return iteration_at(job, shares[rung], history.metric)

    def _start(self, history: History, moves: Sequence[Move]) -> None:
        """Start trials, those of an executor together."""
        entries = {entry.id: entry for entry in self.sweep.planned().cells}
        for move in moves:
            start = self._cell_start(history, move, entries[move.trial.cell])
            if start is None:
                self.sweep.append(TrialWithdrawn(cell=move.trial.cell))
                continue
            devices = self.trainer.room_for(start)
            if devices is None:
                break
            if (place := move.place) is not None:
                self.sweep.append(TrialPromoted(cell=start.id, rung=move.rung, rank=place.rank, of=place.of))
            iteration = self._iteration(history, start.job, move.rung)
            given = tuple(devices) or None
            self.sweep.append(TrialStarted(cell=start.id, rung=move.rung, iteration=iteration, devices=given))
            if not any(commit.iteration >= iteration for commit in committed(start.run)):
                self.trainer.start(start)  # else it has a run that had come so far before this search
        self.trainer.flush()

    def _cell_start(self, history: History, move: Move, entry: Entry) -> CellStart | None:
        """The start that a move asks for; None where a person has taken the run away."""
        run = self.sweep.run(entry)
        if self.drawing is not None and move.trial.budget is None:
            self.drawing.make_run(history, move.trial, run)
        if not run.path.exists():
            return None
        job = load_resolved(run.resolved())
        is_last = move.rung == history.rules.rungs - 1
        stop_at = None if is_last else self._iteration(history, job, move.rung)
        return CellStart(entry.id, entry.name, job, run, stop_at, of_search=True)


def _state(status: CellStatus) -> State:
    """The state of a cell without what is known of its search, which this program itself is."""
    return cell_state(status.status.state, status.status.launched, status.submission)
