"""Successive halving as pure functions: a simulated machine trains hundreds of trials."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples

from orchestrator.sweeps.search.halving import Halving, Strategy, Trial

REDUCTION = 3


def cell_of(number: int) -> str:
    """A hash, as the id of a cell is."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def simulate(
    strategy: Strategy,
    qualities: list[float | None],
    parallel: int,
    *,
    rungs: int = 4,
    seed: int = 0,
    goal: str = "min",
) -> tuple[list[Trial], int]:
    """Search among trials that are as good as that at every rung, None for one that fails; they end in any order. The
    trials, and the steps that were trained.
    """
    source, rules = random.Random(seed), Halving(strategy, REDUCTION, rungs, goal)
    budgets = [REDUCTION**rung for rung in range(rungs)]
    trials = [Trial(cell_of(number)) for number in range(len(qualities))]
    quality_of = {trial.cell: quality for trial, quality in zip(trials, qualities, strict=True)}
    under_way: list[Trial] = []
    steps = 0
    while not rules.is_over(trials):
        for move in rules.moves(trials, parallel - len(under_way)):
            assert move.trial.budget == (None if move.rung == 0 else move.rung - 1), "one rung at a time"
            steps += budgets[move.rung] - (budgets[move.rung - 1] if move.rung else 0)
            move.trial.budget, move.trial.stopped = move.rung, None
            under_way.append(move.trial)
        assert 0 < len(under_way) <= parallel
        trial = under_way.pop(source.randrange(len(under_way)))
        assert trial.budget is not None
        trial.results[trial.budget] = quality_of[trial.cell]
        for place in rules.stops(trials):
            place.trial.stopped = place.rung
    return trials, steps


@pytest.mark.parametrize("strategy", ["asha", "halving"])
@pytest.mark.parametrize("goal", ["min", "max"])
def test_the_best_of_81_trials_is_found_in_a_fraction_of_the_grids_steps(strategy: Strategy, goal: str) -> None:
    qualities: list[float | None] = [abs(number - 60) / 81 for number in range(81)]
    if goal == "max":
        qualities = [1 - (quality or 0.0) for quality in qualities]
    trials, steps = simulate(strategy, qualities, 8, goal=goal)
    ended = [trial.cell for trial in trials if 3 in trial.results]
    assert cell_of(60) in ended
    assert steps <= 81 * 27 // 2, "half of the grid's"
    assert steps <= (243 if strategy == "halving" else 330)
    reached = [sum(rung in trial.results for trial in trials) for rung in range(4)]
    if strategy == "halving":
        assert reached == [81, 27, 9, 3]
    for trial in trials:
        assert (trial.stopped is None) == (trial.cell in ended), "each was trained to its end or told why not"


@settings(max_examples=examples(60), deadline=None)
@given(
    strategy=st.sampled_from(("asha", "halving")),
    qualities=st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=20),
    parallel=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_whatever_fails_the_search_ends_and_some_trial_is_trained_to_its_end(
    strategy: Strategy, qualities: list[float | None], parallel: int, seed: int
) -> None:
    trials, _ = simulate(strategy, qualities, parallel, rungs=3, seed=seed)
    good = [trial for trial, quality in zip(trials, qualities, strict=True) if quality is not None]
    assert all(0 in trial.results for trial in trials)
    assert all(1 not in trial.results for trial in trials if trial not in good), "what failed is not promoted"
    assert any(2 in trial.results for trial in good) == bool(good)


def test_a_withdrawn_trial_is_neither_started_nor_waited_for() -> None:
    rules = Halving("halving", 2, 2, "min")
    trials = [Trial("a", 0, {0: 1.0}), Trial("b", 0, withdrawn=True), Trial("c", withdrawn=True)]
    [move] = rules.moves(trials, 5)
    assert (move.trial.cell, move.rung) == ("a", 1)


def test_more_trials_than_places_wait_and_are_not_told_that_they_were_stopped() -> None:
    rules = Halving("asha", 2, 2, "min")
    trials = [Trial(cell, 0, {0: value}) for cell, value in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0))]
    assert [place.trial.cell for place in rules.stops(trials)] == ["c", "d"]
    assert [move.trial.cell for move in rules.moves(trials, 1)] == ["a"]
