"""The program of a search over a simulated machine: it is killed at any moment and goes on as if nothing had been.

Trials train in no time and in this process; everything else is real: run directories, ledger, states and decisions.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import random
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from orchestrator.cli.runs.sweeps.search import continue_trial, refuse_other_search, search_of
from orchestrator.cli.runs.sweeps.tables import what_matters
from orchestrator.dashboard.app import create_app
from orchestrator.dashboard.settings import Settings
from orchestrator.errors import UserError
from orchestrator.process import Process
from orchestrator.review.filters.listing import summaries_in
from orchestrator.review.sweeps.cells import importance_of, view_of
from orchestrator.run_directory.checkpoints.commit_markers import committed, write_commit
from orchestrator.run_directory.events.ledger import CellsCancelled, CellsDeleted, CellsRestored, LedgerEvent
from orchestrator.run_directory.events.search import SearchPlanned, TrialContinued, TrialRetried
from orchestrator.run_directory.events.types import Exited, Launched
from orchestrator.run_directory.rundir import RunDir, append_line
from orchestrator.spec.loading import load_resolved
from orchestrator.sweeps.ledger import SweepDir, sweep_dir
from orchestrator.sweeps.loading import LoadedSweep, load_sweep
from orchestrator.sweeps.plans import write_plan
from orchestrator.sweeps.request import Task
from orchestrator.sweeps.search.drawing import Drawing
from orchestrator.sweeps.search.history import History
from orchestrator.sweeps.search.program import search
from orchestrator.sweeps.states import cell_statuses
from orchestrator.sweeps.submission import CellStart
from tests.unit.sweeps.conftest import Run, wait_until

RATES = "[1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 9e-2]"
ASHA = f"grid: {{lr: {RATES}}}\nsearch: {{strategy: asha, first_rung: 2}}\n"
HALVING = ASHA.replace("asha", "halving")
BAYESIAN = """\
random: {count: 16, seed: 3, fields: {lr: {loguniform: [1e-5, 1e-1]}, weight_decay: {choice: [0.0, 0.1]}}}
search: {strategy: bayesian}
"""
STEPS = 18
GRID_OF_BAYESIAN = 9 * 2 * 2
"""Cells of a grid with a value for each half order of magnitude, and each choice."""


class Killed(BaseException):
    """In place of SIGKILL."""


@dataclass
class Machine:
    """Trials that end one after the other, whatever becomes of the programs that start them."""

    bad: tuple[float, ...] = ()
    nan: tuple[float, ...] = ()
    stopped_by_hand: tuple[float, ...] = ()
    metric: str = "train/loss"
    under_way: list[tuple[Task, str]] = field(default_factory=list)
    steps: int = 0
    starts: list[str] = field(default_factory=list)

    def begin(self, task: Task) -> None:
        run, launch_id = RunDir(Path(task.run_dir)), f"launch-{len(self.starts)}"
        if any(each.run_dir == task.run_dir for each, _ in self.under_way):
            return  # the lease refuses another one
        self.starts.append(task.cell)
        run.append(Launched(launch_id=launch_id, job_id=None, **Process.current().to_record()))
        self.under_way.append((task, launch_id))

    def end_one(self) -> None:
        """The trial that was started first comes to its end."""
        if not self.under_way:
            return
        task, launch_id = self.under_way.pop(0)
        run = RunDir(Path(task.run_dir))
        job = load_resolved(run.resolved())
        done = max((commit.iteration for commit in committed(run)), default=0)
        last = task.stop_at or STEPS
        assert done < last, "nothing is trained twice"
        lr = job.optimizer.lr
        cause = "stopped" if task.stop_at is not None else "completed"
        if lr in self.bad:
            cause, last = "bug", done
        elif lr in self.stopped_by_hand:
            cause, last = "stopped", last - 1
        for iteration in range(done + 1, last + 1):
            loss = math.nan if lr in self.nan else loss_at(lr, job.optimizer.weight_decay, iteration)
            append_line(
                run.metrics_file,
                {"time": 1.0, "iteration": iteration, "samples": 0, "tokens": 0, "values": {self.metric: str(loss)}},
            )
        self.steps += last - done
        if last > done:
            run.checkpoint(last).mkdir(parents=True)
            write_commit(run.checkpoint(last), iteration=last, consumed_samples=0, files={})
        run.append(Exited(launch_id=launch_id, code=0, cause=cause, message="", iteration=last, evidence=(), node=None))


def loss_at(lr: float, weight_decay: float, iteration: int) -> float:
    """It falls to what the planted optimum, 1e-3 without decay, is away."""
    return abs(math.log10(lr) + 3) + weight_decay + 3.0 * 0.8**iteration


@dataclass
class MachineTrainer:
    """What one program knows of the machine. `kill`: whether it is killed now."""

    machine: Machine
    process: Process
    kill: Callable[[], bool]
    cells: set[str] = field(default_factory=set)
    seconds = 0.0
    is_here = True

    def running(self) -> Collection[str]:
        self.machine.end_one()
        return self.cells & {task.cell for task, _ in self.machine.under_way}

    def adopt(self, devices: Mapping[str, Collection[str]]) -> None:
        assert not self.cells & devices.keys(), "they are another program's"

    def room_for(self, start: CellStart) -> Collection[str]:
        return ()

    def start(self, start: CellStart) -> None:
        if self.kill():
            raise Killed
        self.cells.add(start.id)
        self.machine.begin(Task(start.id, start.name, str(start.run.path), [], stop_at=start.stop_at))
        if self.kill():
            raise Killed

    def flush(self) -> None:
        pass


@dataclass(frozen=True)
class KillingDir(SweepDir):
    """A sweep whose program is killed before or after it writes to the ledger."""

    kill: Callable[[], bool] = lambda: False

    def append(self, event: LedgerEvent) -> None:
        if self.kill():
            raise Killed
        super().append(event)
        if self.kill():
            raise Killed


@dataclass
class Lab:
    """A sweep in a folder, its search as `sweep run` plans it, and programs that are killed."""

    machine: Machine = field(default_factory=Machine)
    programs: int = 0
    loaded: LoadedSweep | None = None

    def plan(self, text: str, folder: str = "runs", parallel: int = 1) -> SweepDir:
        planned = self.planned(text, parallel)
        loaded = self.loaded = load_sweep([Path("sweep.yaml")])
        sweep = sweep_dir(loaded.name, Path(folder))
        write_plan(sweep, _with_metric(loaded, planned.metric))
        sweep.append(planned)
        return sweep

    @staticmethod
    def planned(text: str, parallel: int = 1) -> SearchPlanned:
        Path("sweep.yaml").write_text(f"base: job.yaml\n{text}")
        files = [Path("sweep.yaml")]
        planned = search_of(load_sweep(files), files, (), None, parallel, local=True)
        assert planned is not None
        return planned

    def search(self, sweep: SweepDir, kill: Callable[[], bool] = lambda: False) -> None:
        """A program, to its end or until it is killed."""
        self.programs += 1
        process = replace(Process.current(), pid=(1 << 30) + self.programs, started=None)  # one that lives no more
        killing = KillingDir(sweep.path, kill)
        history = searched(sweep)
        assert self.loaded is not None
        drawing = Drawing(killing, self.loaded) if history.rules.strategy == "bayesian" else None
        search(killing, MachineTrainer(self.machine, process, kill), drawing)


def _with_metric(loaded: LoadedSweep, metric: str | None) -> LoadedSweep:
    return replace(loaded, spec=loaded.spec.model_copy(update={"metric": metric}))


@pytest.fixture
def lab(folder: Path) -> Lab:
    job = (folder / "job.yaml").read_text().replace("train_iters: 20", f"train_iters: {STEPS}")
    (folder / "job.yaml").write_text(job)
    return Lab()


def found(sweep: SweepDir) -> tuple[dict[str, dict[int, float | None]], dict[str, int | None]]:
    """By the values of its cell, what each trial has come to at each rung, and at which one it was stopped."""
    history, names = searched(sweep), {entry.id: entry.name for entry in sweep.planned().cells}
    results = {names[cell]: trial.results for cell, trial in history.trials.items()}
    return results, {names[cell]: trial.stopped for cell, trial in history.trials.items()}


def searched(sweep: SweepDir) -> History:
    history = sweep.search()
    assert history is not None
    return history


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
    with pytest.raises(UserError, match=r"^train/loss, by which the search compares cells, was not measured by run"):
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


def test_a_trial_of_a_cluster_is_continued_here(lab: Lab) -> None:
    sweep = lab.plan(HALVING)
    lab.search(sweep)
    here = searched(sweep).planned
    sweep.append(SearchPlanned(**{**vars(here), "local": False, "cluster": "alps", "parallel": 4}))
    [worst] = [each for each in cell_statuses(sweep, sweep.planned()) if each.entry.name == "lr=1e-5"]
    continue_trial(sweep, "lr=1e-5", local=True)
    planned = searched(sweep).planned
    assert (planned.local, planned.cluster, planned.parallel, planned.shares) == (True, None, 1, here.shares)
    lab.search(sweep)
    [again] = [each for each in cell_statuses(sweep, sweep.planned()) if each.entry == worst.entry]
    assert (worst.state, again.state) == ("stopped", "completed")


def test_results_of_a_search_compare_at_equal_steps(lab: Lab, orchestrator: Run) -> None:
    """A cell that was stopped early and is better there than others at their end comes behind them."""
    sweep = lab.plan(HALVING)
    lab.search(sweep)
    rows = json.loads(orchestrator("sweep", "results", "tiny", "--json")[1])
    reached = [(row["furthest_rung"]["iteration"], row["furthest_rung"]["value"]) for row in rows]
    assert [step for step, _ in reached] == [18, 6, 6, *[2] * 6]
    assert all(reached[step:end] == sorted(reached[step:end]) for step, end in ((1, 3), (3, 9)))
    backwards = json.loads(orchestrator("sweep", "results", "tiny", "--reverse", "--json")[1])
    assert backwards == rows[::-1]
    header, *lines = [line.split() for line in orchestrator("sweep", "results", "tiny")[1].splitlines()[:10]]
    assert header == ["lr", "STATE", "ITERATION", "train/loss", "AT", "STEP", "RUN"]
    assert [(int(line[4]), float(line[3])) for line in lines] == [
        (step, float(f"{loss:.6g}")) for step, loss in reached
    ]
    table = list(csv.DictReader(orchestrator("sweep", "results", "tiny", "--csv")[1].splitlines()))
    assert [(int(row["rung_iteration"]), float(row["rung_value"])) for row in table] == reached
    view = view_of(sweep, {run.key: run for run in summaries_in(sweep.runs_dir)})
    assert [cell.rungs[-1].iteration for cell in view.cells] == [step for step, _ in reached]
    assert (importance_of(view)[0].problem, len(view.current)) == (None, 9)
    rows_of_now = cell_statuses(sweep, sweep.planned())
    assert len({row.rungs[0].iteration for row in rows_of_now}) == 1, "where all were measured, they are compared"
    assert "cannot be computed" not in what_matters(rows_of_now, "train/loss")


def test_a_stopped_trial_is_continued_to_its_end_and_says_until_then_why_it_was_stopped(
    lab: Lab, orchestrator: Run
) -> None:
    sweep = lab.plan(HALVING)
    lab.search(sweep)
    cells = {cell.entry.name: cell for cell in cell_statuses(sweep, sweep.planned())}
    worst = cells["lr=1e-5"]
    assert (worst.state, worst.status.iteration) == ("stopped", 2)
    assert worst.note == "at step 2: rank 9 of 9 at rung 1 by train/loss 3.93"
    assert worst.to_json()["search"] == {
        "rung": 1,
        "rungs": 3,
        "iteration": 2,
        "value": pytest.approx(3.93),
        "rank": 9,
        "of": 9,
        "metric": "train/loss",
        "cause": None,
    }
    continued = ("sweep", "continue", "tiny", "--cell", "lr=1e-5", "--dry-run")
    before = sweep.ledger.read_bytes()
    steps = {"cell": worst.entry.id, "run_id": worst.status.run.run_id, "iteration": 2, "train_iters": STEPS}
    assert json.loads(orchestrator(*continued, "--json")[1]) == {**steps, "local": True, "cluster": None}
    assert orchestrator(*continued)[0] == 0
    assert orchestrator(*continued[:3], "--cell", "lr=1e-3", "--dry-run")[0] == 2, "it is completed"
    assert sweep.ledger.read_bytes() == before

    assert cells["lr=3e-4"].note == "at step 6: rank 3 of 3 at rung 2 by train/loss 1.31931"
    assert (cells["lr=1e-3"].state, cells["lr=1e-3"].note) == ("completed", "")

    with TestClient(create_app(Settings(sweep.runs_dir))) as client:
        wait_until(lambda: "are being read" not in client.get("/sweeps/tiny").text)
        page = client.get("/sweeps/tiny").text
    assert worst.note in page
    assert (
        "halving search: 9 of 9 trials begun, 9 reached rung 1, 3 reached rung 2, 1 trained to the end; over." in page
    )

    steps = lab.machine.steps
    sweep.append(TrialContinued(cell=worst.entry.id))
    lab.search(sweep)
    assert lab.machine.steps == steps + STEPS - 2, "from its checkpoint, and nothing else"
    [again] = [cell for cell in cell_statuses(sweep, sweep.planned()) if cell.entry == worst.entry]
    assert (again.state, again.note, again.status.iteration) == ("completed", "", STEPS)


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
    with pytest.raises(UserError, match="has begun a search with another strategy: give this one its own name"):
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
