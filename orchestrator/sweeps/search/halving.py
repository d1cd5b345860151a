"""Successive halving: which trials are trained on, and which stop at their rung. Pure functions of what was measured.

ASHA (Li et al., 2020, arXiv:1810.05934) promotes a trial as soon as it is among the best of those that have reached its
rung so far; synchronous halving (Jamieson and Talwalkar, 2016) waits for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Strategy = Literal["asha", "halving", "bayesian"]


@dataclass
class Trial:
    """A cell of a search. `budget`: the rung that it is trained to, None before it has begun; `results`: what was
    measured at each rung, None where the trial counts as the worst; `stopped`: the rung at which it was stopped.
    """

    cell: str
    budget: int | None = None
    results: dict[int, float | None] = field(default_factory=dict)
    stopped: int | None = None
    withdrawn: bool = False
    """A person has stopped its run, or taken it away: it is not started by itself."""

    @property
    def is_open(self) -> bool:
        """Whether it is to be trained to its rung."""
        return self.budget is not None and self.budget not in self.results and not self.withdrawn

    @property
    def has_failed(self) -> bool:
        """Whether it counts as the worst at its rung."""
        return self.budget is not None and self.results.get(self.budget, 0.0) is None


@dataclass(frozen=True)
class Place:
    """A trial among those that have reached its rung, from 1."""

    trial: Trial
    rung: int
    rank: int
    of: int


@dataclass(frozen=True)
class Move:
    """A trial that is to be trained to a rung. `place`: at the rung before; None for one that has not begun."""

    trial: Trial
    rung: int
    place: Place | None = None


@dataclass(frozen=True)
class Halving:
    """The rules of a search. `rungs`: how many there are, the last one at the end of the training; with one, every
    trial is trained to its end.
    """

    strategy: Strategy
    reduction: int
    rungs: int
    goal: str

    def ranking(self, trials: Sequence[Trial], rung: int) -> list[Place]:
        """The trials that have reached a rung, the best first."""
        sign = -1.0 if self.goal == "max" else 1.0

        def key(trial: Trial) -> tuple[bool, float]:
            value = trial.results[rung]
            return value is None, 0.0 if value is None else sign * value

        ranked = sorted((trial for trial in trials if rung in trial.results), key=key)
        return [Place(trial, rung, rank, len(ranked)) for rank, trial in enumerate(ranked, 1)]

    def moves(self, trials: Sequence[Trial], free: int) -> list[Move]:
        """What to train next on so many free places: promoted trials first, from the top rung down, then new ones."""
        copies = {trial.cell: replace(trial) for trial in trials}
        found: list[Move] = []
        while len(found) < free and (move := self._next(list(copies.values()))) is not None:
            copies[move.trial.cell].budget = move.rung
            found.append(move)
        originals = {trial.cell: trial for trial in trials}
        return [replace(move, trial=originals[move.trial.cell]) for move in found]

    def stops(self, trials: Sequence[Trial]) -> list[Place]:
        """The trials that have reached their rung and are not promoted, as things are, and have not been told so."""
        found = []
        for rung in range(self.rungs - 1):
            if self.strategy == "halving" and not self._is_closed(trials, rung):
                continue
            promoted = {place.trial.cell for place in self._promotable(trials, rung)}
            for place in self.ranking(trials, rung):
                trial = place.trial
                waits = trial.budget == rung and trial.results[rung] is not None and trial.stopped != rung
                if waits and trial.cell not in promoted:
                    found.append(place)
        return found

    def is_over(self, trials: Sequence[Trial]) -> bool:
        """Whether nothing is trained, and nothing is left to be."""
        return not any(trial.is_open for trial in trials) and not self.moves(trials, 1)

    def _next(self, trials: Sequence[Trial]) -> Move | None:
        for rung in reversed(range(self.rungs - 1)):
            if promotable := self._promotable(trials, rung):
                return Move(promotable[0].trial, rung + 1, promotable[0])
        new = [trial for trial in trials if trial.budget is None and not trial.withdrawn]
        if self.strategy == "asha":  # of a grid that gets better and better, ASHA would promote each cell in turn
            new.sort(key=lambda trial: trial.cell)  # a hash
        return Move(new[0], 0) if new else None

    def _promotable(self, trials: Sequence[Trial], rung: int) -> list[Place]:
        """Those among the best of a rung that wait there. Of a rung that nobody else will reach one is promoted,
        however few have reached it: the search ends with a trial that was trained to the end.
        """
        is_closed = self._is_closed(trials, rung)
        if self.strategy == "halving" and not is_closed:
            return []
        ranked = self.ranking(trials, rung)
        quota = max(len(ranked) // self.reduction, 1 if is_closed else 0)
        return [
            place
            for place in ranked[:quota]
            if place.trial.budget == rung and place.trial.results[rung] is not None and not place.trial.withdrawn
        ]

    def _is_closed(self, trials: Sequence[Trial], rung: int) -> bool:
        """Whether nobody will reach a rung any more who has not."""
        for trial in trials:
            has_not_begun = trial.budget is None and not trial.withdrawn
            if has_not_begun or (trial.is_open and trial.budget is not None and trial.budget <= rung):
                return False
        return rung == 0 or not self._promotable(trials, rung - 1)
