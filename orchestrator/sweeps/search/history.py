"""What the ledger of a sweep says of its search: how far each trial is, and whether its program runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.process import Process
from orchestrator.run_directory.events.ledger import CellsDeleted, CellsRestored, Ledger, TrialDrawn
from orchestrator.run_directory.events.search import (
    RungReached,
    SearchEnded,
    SearchPlanned,
    SearchStarted,
    TrialContinued,
    TrialPromoted,
    TrialRetried,
    TrialStarted,
    TrialStopped,
    TrialWithdrawn,
)
from orchestrator.sweeps.search.halving import Halving, Place, Strategy, Trial

_STRATEGIES: Mapping[str, Strategy] = {"asha": "asha", "halving": "halving", "bayesian": "bayesian"}


@dataclass(frozen=True)
class Standing:
    """Where a trial stands among those that have reached its rung. `rung` counts from 1; `cause`: why it counts as the
    worst, where it has no value.
    """

    rung: int
    rungs: int
    iteration: int
    value: float | None
    rank: int
    of: int
    metric: str
    cause: str | None = None

    def __str__(self) -> str:
        by = f"by {self.metric} {self.value:.6g}" if self.value is not None else f"because {self.cause}"
        return f"at step {self.iteration:,}: rank {self.rank} of {self.of} at rung {self.rung} {by}"

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return dict(vars(self))


@dataclass(frozen=True)
class Measured:
    """What a trial has come to at a rung, which counts from 1; without a value it counts as the worst there."""

    rung: int
    rungs: int
    iteration: int
    value: float | None
    metric: str

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return dict(vars(self))


@dataclass(frozen=True)
class History:
    """A search so far. `trials`: by cell, in the order of the sweep; `draws`: of a search that draws its cells;
    `started`: the number of its program's starts; `iterations`: of the rungs that were reached, by cell and rung;
    `causes`: why trials count as the worst; `devices`: the GPUs that a cell was last started on here; `retried`: when a
    person last had one tried again; `deleted`: cells whose runs a person has deleted.
    """

    planned: SearchPlanned
    rules: Halving
    trials: dict[str, Trial]
    draws: list[TrialDrawn]
    started: int
    driver: Process | None
    ended: SearchEnded | None
    iterations: dict[tuple[str, int], int] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    retried: dict[str, float] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)

    @property
    def is_running(self) -> bool:
        """Whether its program runs on this machine."""
        return self.driver is not None and self.ended is None and self.driver.is_alive

    @property
    def metric(self) -> str:
        """What trials are compared by."""
        return self.planned.metric or "train/loss"

    def waits(self, cell: str) -> bool:
        """Whether the program that runs starts a cell yet that stands still, or has still to decide on it."""
        trial = self.trials.get(cell)
        if trial is None or not self.is_running or trial.withdrawn:
            return False
        if trial.budget is None or trial.is_open:
            return True
        return trial.budget < self.rules.rungs - 1 and not trial.has_failed and trial.stopped != trial.budget

    def measured(self) -> dict[str, tuple[Measured, ...]]:
        """The rungs that each trial has reached, the first one first, by cell."""
        return {
            cell: tuple(
                Measured(rung + 1, self.rules.rungs, self.iterations[cell, rung], value, self.metric)
                for rung, value in sorted(trial.results.items())
            )
            for cell, trial in self.trials.items()
        }

    def standings(self) -> dict[str, Standing]:
        """Of each trial that was stopped at a rung, or counts as the worst there, by cell."""
        found = {}
        for rung in range(self.rules.rungs - 1):
            for place in self.rules.ranking(list(self.trials.values()), rung):
                trial = place.trial
                if trial.budget == rung and (trial.stopped == rung or trial.has_failed):
                    found[trial.cell] = self._standing(place)
        return found

    def _standing(self, place: Place) -> Standing:
        cell = place.trial.cell
        return Standing(
            rung=place.rung + 1,
            rungs=self.rules.rungs,
            iteration=self.iterations[cell, place.rung],
            value=place.trial.results[place.rung],
            rank=place.rank,
            of=place.of,
            metric=self.metric,
            cause=self.causes.get(cell),
        )

    def summary(self) -> str:
        """`asha search: 9 of 27 trials begun; 3 reached rung 2, 1 was trained to the end; under way`."""
        trials = self.trials.values()
        begun = sum(trial.budget is not None for trial in trials)
        number = max(self.planned.trials or 0, len(self.trials))
        reached = [sum(rung in trial.results for trial in trials) for rung in range(self.rules.rungs)]
        rungs = "".join(f", {count} reached rung {rung}" for rung, count in enumerate(reached[:-1], 1))
        return (
            f"{self.rules.strategy} search: {begun} of {number} trials begun{rungs}, {reached[-1]} trained to the end; "
            f"{self.state}"
        )

    @property
    def state(self) -> str:
        """What its program does, in a few words."""
        if self.ended is None:
            return "under way" if self.is_running else "its program does not run on this machine"
        if self.ended.problem:
            return f"ended early: {self.ended.problem}"
        return "cancelled" if self.ended.cancelled else "over"

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "strategy": self.rules.strategy,
            "metric": self.metric,
            "goal": self.rules.goal,
            "reduction": self.rules.reduction,
            "shares": self.planned.shares,
            "trials": self.planned.trials,
            "running": self.is_running,
            "state": self.state,
        }


def history_of(events: Ledger) -> History | None:
    """What a ledger says of its search; None where the sweep has none."""
    plans = events.all(SearchPlanned)
    newest = plans[-1] if plans else None
    shares = [share for share in (newest.shares or ()) if isinstance(share, int | float)] if newest else []
    strategy = _STRATEGIES.get(newest.strategy or "") if newest is not None else None
    if newest is None or not shares or strategy is None:
        return None
    rules = Halving(strategy, max(newest.reduction or 0, 2), len(shares), newest.goal or "min")
    cells = [str(row["id"]) for plan in events.plans[-1:] for row in plan.rows if "id" in row]
    starts = [number for number, event in enumerate(events) if isinstance(event, SearchStarted)]
    ends = [event for event in events[starts[-1] :] if isinstance(event, SearchEnded)] if starts else []
    last = events[starts[-1]] if starts else None
    found = History(
        planned=newest,
        rules=rules,
        trials={cell: Trial(cell) for cell in cells},
        draws=events.all(TrialDrawn),
        started=len(starts),
        driver=Process.from_record(last.driver or {}) if isinstance(last, SearchStarted) else None,
        ended=ends[-1] if ends else None,
    )
    for event in events:
        _apply(event, found)
    return found


def _apply(event: object, to: History) -> None:
    """What an event changes."""
    match event:
        case SearchStarted():
            for each in to.trials.values():
                each.withdrawn = each.cell in to.deleted
        case CellsDeleted():
            to.deleted.update(event.cells or ())
        case CellsRestored():
            to.deleted.difference_update(event.cells or ())
    if isinstance(event, CellsDeleted | CellsRestored):
        for cell in to.trials.keys() & set(event.cells or ()):
            to.trials[cell].withdrawn = cell in to.deleted
    trial = to.trials.get(str(getattr(event, "cell", None)))
    if trial is None:
        return
    match event:
        case TrialStarted(rung=int(rung)):
            trial.budget = max(rung, trial.budget or 0)
            to.devices[trial.cell] = event.devices or ()
        case RungReached(rung=int(rung)):
            trial.results[rung] = event.value
            trial.budget = max(rung, trial.budget or 0)
            to.iterations[trial.cell, rung] = event.iteration or 0
            if event.cause is not None:
                to.causes[trial.cell] = event.cause
        case TrialStopped(rung=int(rung)):
            trial.stopped = rung
        case TrialPromoted(rung=int(rung)):
            trial.budget, trial.stopped = rung, None
        case TrialContinued():
            trial.budget, trial.stopped = to.rules.rungs - 1, None
        case TrialRetried():
            trial.results = {rung: value for rung, value in trial.results.items() if value is not None}
            to.causes.pop(trial.cell, None)
            to.retried[trial.cell] = event.time or 0.0
        case TrialWithdrawn():
            trial.withdrawn = True
