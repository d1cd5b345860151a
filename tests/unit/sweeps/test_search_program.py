"""The program of a search over a simulated machine: it is killed at any moment and goes on as if nothing had been.

Trials train in no time and in this process; everything else is real: run directories, ledger, states and decisions.
"""

from __future__ import annotations

import itertools
import math
import random
import shutil
from pathlib import Path

import pytest
from support.refused import refused

from orchestrator.cli.runs.sweeps.search import refuse_other_search
from orchestrator.run_directory.events.ledger import CellsCancelled, CellsDeleted, CellsRestored
from orchestrator.run_directory.events.search import TrialRetried
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.states import cell_statuses
from tests.unit.sweeps.search_lab import (
    ASHA,
    BAYESIAN,
    GRID_OF_BAYESIAN,
    HALVING,
    STEPS,
    Killed,
    Lab,
    Machine,
    searched,
)


def found(sweep: SweepDir) -> tuple[dict[str, dict[int, float | None]], dict[str, int | None]]:
    """By the values of its cell, what each trial has come to at each rung, and at which one it was stopped."""
    history, names = searched(sweep), {entry.id: entry.name for entry in sweep.planned().cells}
    results = {names[cell]: trial.results for cell, trial in history.trials.items()}
    return results, {names[cell]: trial.stopped for cell, trial in history.trials.items()}


@pytest.mark.parametrize("text", [ASHA, HALVING, BAYESIAN], ids=["asha", "halving", "bayesian"])
def test_the_planted_optimum_is_found_with_half_of_the_grids_steps_whatever_kills_the_program(
    lab: Lab, text: str
) -> None:
    lab.machine = Machine()
    undisturbed = lab.plan(text, "undisturbed")
    lab.search(undisturbed)
    grid = (9 if "grid" in text else GRID_OF_BAYESIAN) * STEPS
    assert lab.machine.steps <= grid // 2
    results, stopped = found(undisturbed)
    best = min((rungs[max(rungs)] or 0.0, name) for name, rungs in results.items() if stopped[name] is None)
    lr = float(best[1].split(",")[0].removeprefix("lr="))
    assert abs(math.log10(lr) + 3) < 0.25, "nearer than the next value of the grid"
    steps = lab.machine.steps

    source, kills = random.Random(text), 0
    lab.machine = Machine()
    sweep = lab.plan(text, "killed")
    while True:
        try:
            lab.search(sweep, lambda: source.random() < 0.05)
            break
        except Killed:
            kills += 1
    assert kills >= 5
    assert found(sweep) == (results, stopped)
    assert lab.machine.steps == steps, "nothing was trained twice"
    assert len(list(Path("killed/tiny").iterdir())) == len(results), "no trial has a second run"
    assert searched(sweep).state == "over"
    assert 5 <= searched(sweep).started <= kills + 1


def test_a_trial_that_fails_or_measures_nan_is_the_worst_and_is_tried_again_only_when_a_person_says_so(
    lab: Lab,
) -> None:
    lab.machine = Machine(bad=(1e-3,), nan=(3e-3,))
    sweep = lab.plan(HALVING)
    lab.search(sweep)
    results, stopped = found(sweep)
    assert results["lr=1e-3"] == {0: None}
    assert results["lr=3e-3"] == {0: None}
    assert stopped["lr=1e-3"] is None, "it failed, which is said instead"
    assert len(lab.machine.starts) == 9 + 3 + 1, "what failed was started once"
    assert 2 in results["lr=3e-4"], "the best of the others"
    history = searched(sweep)
    ids = {entry.name: entry.id for entry in sweep.planned().cells}
    assert history.causes == {ids["lr=1e-3"]: "bug", ids["lr=3e-3"]: "train/loss is nan"}
    notes = {cell.entry.name: (cell.state, cell.note) for cell in cell_statuses(sweep, sweep.planned())}
    assert notes["lr=1e-3"] == ("failed", "bug")
    assert notes["lr=3e-3"] == ("stopped", "at step 2: rank 9 of 9 at rung 1 because train/loss is nan")

    lab.machine.bad = ()
    sweep.append(TrialRetried(cell=ids["lr=1e-3"]))
    lab.search(sweep)
    results, _ = found(sweep)
    assert 2 in results["lr=1e-3"], "it is promoted as any other"
    assert lab.machine.starts.count(ids["lr=1e-3"]) == 1 + 3
    assert lab.machine.starts.count(ids["lr=3e-3"]) == 1


def test_a_metric_that_is_never_written_ends_the_search_with_one_message(lab: Lab) -> None:
    lab.machine = Machine(metric="train/los")
    sweep = lab.plan(ASHA)
    with refused("metric_not_measured", "train/loss"):
        lab.search(sweep)
    history = searched(sweep)
    assert history.state.startswith("ended early: train/loss, by which the search compares cells, was not measured")
    assert history.state.endswith("up to step 2: set sweep.metric to one of train/los")
    assert len(lab.machine.starts) == 1


def test_a_trial_that_a_person_has_stopped_is_left_alone_until_the_search_is_started_again(lab: Lab) -> None:
    lab.machine = Machine(stopped_by_hand=(1e-3,))
    sweep = lab.plan(HALVING)
    lab.search(sweep)
    results, _ = found(sweep)
    assert results["lr=1e-3"] == {}
    assert sum(2 in rungs for rungs in results.values()) == 1
    lab.machine.stopped_by_hand = ()
    lab.search(sweep)
    results, _ = found(sweep)
    assert 2 in results["lr=1e-3"]


def test_a_trial_whose_run_was_taken_away_is_not_trained_again(lab: Lab) -> None:
    sweep = lab.plan(HALVING)
    best, unbegun = (sweep.run(entry).path for entry in sweep.planned().cells if entry.name in ("lr=1e-3", "lr=9e-2"))
    shutil.rmtree(unbegun)

    def before_it_is_promoted() -> bool:
        if best.exists() and sum(0 in trial.results for trial in searched(sweep).trials.values()) == 8:
            shutil.rmtree(best)
        return False

    lab.search(sweep, before_it_is_promoted)
    history, ids = searched(sweep), {entry.name: entry.id for entry in sweep.planned().cells}
    assert history.state == "over"
    assert history.trials[ids["lr=1e-3"]].withdrawn
    assert history.trials[ids["lr=9e-2"]].withdrawn
    assert not best.exists()
    assert not unbegun.exists()
    assert sum(2 in trial.results for trial in history.trials.values()) == 1


def test_a_deleted_trial_waits_for_nobody_until_it_is_restored(lab: Lab) -> None:
    sweep = lab.plan(HALVING)
    [best] = [entry.id for entry in sweep.planned().cells if entry.name == "lr=1e-3"]
    sweep.append(CellsDeleted(cells=(best,)))
    for _ in range(2):
        lab.search(sweep)
        assert best not in lab.machine.starts
        assert searched(sweep).state == "over"
    assert {cell.entry.id: cell.state for cell in cell_statuses(sweep, sweep.planned())}[best] == "deleted"
    sweep.append(CellsRestored(cells=(best,)))
    lab.search(sweep)
    assert lab.machine.starts[-1] == best


def test_a_cancelled_search_starts_nothing_more_and_goes_on_later(lab: Lab) -> None:
    sweep = lab.plan(HALVING)
    looks = itertools.count()

    def cancel_at_the_third() -> bool:
        if next(looks) == 20:
            sweep.append(CellsCancelled(cells=()))
        return False

    lab.search(sweep, cancel_at_the_third)
    assert searched(sweep).state == "cancelled"
    begun = len(lab.machine.starts)
    assert 0 < begun < 9
    lab.search(sweep)
    assert searched(sweep).state == "over"
    assert len(lab.machine.starts) == 9 + 3 + 1


def test_what_cannot_be_drawn_is_a_trial_too(lab: Lab) -> None:
    sweep = lab.plan(
        "random: {count: 6, fields: {tp: {choice: [1, 3]}, runtime.seed: {integers: [1, 2]}}}\n"
        "when: lr < 1\nsearch: {strategy: bayesian}\n"
    )
    lab.search(sweep)
    history, planned = searched(sweep), sweep.planned()
    assert len(history.draws) == 6
    assert len(planned.cells) + len(planned.pruned) == 6
    reasons = {row["reason"].partition(":")[0] for row in planned.pruned}
    assert "parallelism.tensor_model_parallel_size" in reasons or "model.num_attention_heads" in str(reasons)
    assert history.state == "over"


def test_a_search_of_another_kind_needs_another_name(lab: Lab) -> None:
    sweep = lab.plan(ASHA)
    lab.search(sweep)
    with refused("search_differs", "strategy"):
        refuse_other_search(sweep, lab.planned(HALVING))
    refuse_other_search(sweep, lab.planned(ASHA))


@pytest.mark.parametrize("seed", range(3))
def test_three_at_once_are_trained_once_each_whatever_kills_the_program(lab: Lab, seed: int) -> None:
    source = random.Random(seed)
    sweep = lab.plan(ASHA, parallel=3)
    while True:
        try:
            lab.search(sweep, lambda: source.random() < 0.05)
            break
        except Killed:
            assert len(lab.machine.under_way) <= 3
    history = searched(sweep)
    assert all(0 in trial.results for trial in history.trials.values())
    ended = [trial for trial in history.trials.values() if 2 in trial.results]
    assert len(ended) + len(history.standings()) == 9
    assert {"lr=1e-3"} <= {entry.name for entry in sweep.planned().cells if entry.id in {each.cell for each in ended}}
    assert lab.machine.steps <= 9 * STEPS // 2
    assert len(lab.machine.starts) == sum(len(trial.results) for trial in history.trials.values()), "no start too many"
