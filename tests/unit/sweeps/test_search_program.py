"""The program of a search over a simulated machine: it is killed at any moment and goes on as if nothing had been.

Trials train in no time and in this process; everything else is real: run directories, ledger, states and decisions.
"""

from __future__ import annotations

import math
import os
import pkgutil
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.runs.sweeps.search import search_of
from orchestrator.process import Process
from orchestrator.run_directory.checkpoints.commit_markers import committed, write_commit
from orchestrator.run_directory.events.types import Exited, Launched
from orchestrator.run_directory.rundir import RunDir, append_line
from orchestrator.spec.loading import load_resolved
from orchestrator.sweeps.ledger import SweepDir, sweep_dir
from orchestrator.sweeps.loading import LoadedSweep, load_sweep
from orchestrator.sweeps.plans import write_plan
from orchestrator.sweeps.request import Task
from orchestrator.sweeps.search import program
from orchestrator.sweeps.search.history import History

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
class Cells:
    """In place of LocalCells: what one program knows of the machine."""

    machine: Machine
    running: dict[str, Any] = field(default_factory=dict)
    others: dict[str, list[str]] = field(default_factory=dict)

    def settle(self) -> None:
        self.machine.end_one()
        alive = {task.cell for task, _ in self.machine.under_way}
        self.running = {cell: job for cell, job in self.running.items() if cell in alive}

    def room_for(self, task: Task) -> list[str]:
        return []

    def start(self, task: Task) -> list[str]:
        self.running[task.cell] = None
        self.machine.begin(task)
        return []


@dataclass
class Lab:
    """A sweep in a folder, its search as `sweep run` plans it, and programs that are killed."""

    monkeypatch: pytest.MonkeyPatch
    machine: Machine = field(default_factory=Machine)
    programs: int = 0

    def plan(self, text: str, folder: str = "runs", parallel: int = 1) -> SweepDir:
        Path("sweep.yaml").write_text(f"base: job.yaml\n{text}")
        loaded = load_sweep([Path("sweep.yaml")])
        planned = search_of(loaded, [Path("sweep.yaml")], (), None, parallel, local=True)
        assert planned is not None
        sweep = sweep_dir(loaded.name, Path(folder))
        write_plan(sweep, _with_metric(loaded, planned.metric))
        sweep.append(planned)
        return sweep

    def search(self, sweep: SweepDir, kill: Callable[[], bool] = lambda: False) -> None:
        """A program, to its end or until it is killed: before or after it has written to the ledger or made a run."""
        self.programs += 1
        cells, number = Cells(self.machine), self.programs
        with self.monkeypatch.context() as patch:
            here = Process.current()
            patch.setattr(program, "Process", _Named(replace(here, pid=(1 << 30) + number, started=None)))
            patch.setattr(program, "LocalCells", lambda *arguments: cells)
            patch.setattr(program, "tell_of_sweep", lambda sweep, wait: None)
            patch.setattr(program, "_SECONDS_BETWEEN_LOOKS", 0.0)
            for place in ("orchestrator.sweeps.ledger.append_line", "orchestrator.launch.runs.os.rename"):
                patch.setattr(place, _killed(pkgutil.resolve_name(place), kill))
            patch.setattr(Cells, "start", _killed(Cells.start, kill))
            program.search(sweep, "unused")


class _Named:
    """In place of the class Process: another process for each program, which no longer lives."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def current(self) -> Process:
        return self._process


def _killed(call: Callable[..., Any], kill: Callable[[], bool]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if kill():
            raise Killed
        found = call(*arguments, **named)
        if kill():
            raise Killed
        return found

    return wrapped


def _with_metric(loaded: LoadedSweep, metric: str | None) -> LoadedSweep:
    return replace(loaded, spec=loaded.spec.model_copy(update={"metric": metric}))


@pytest.fixture
def lab(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    job = (folder / "job.yaml").read_text().replace("train_iters: 20", f"train_iters: {STEPS}")
    (folder / "job.yaml").write_text(job)
    yield Lab(monkeypatch)
    os.chdir(folder)


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
            lab.search(sweep, lambda: source.random() < 0.06)
            break
        except Killed:
            kills += 1
    assert kills >= 5
    assert found(sweep) == (results, stopped)
    assert lab.machine.steps == steps, "nothing was trained twice"
    assert len(list(Path("killed/tiny").iterdir())) == len(results), "no trial has a second run"
    assert searched(sweep).state == "over"
    assert 5 <= searched(sweep).started <= kills + 1
