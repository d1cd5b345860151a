"""A sweep in a folder and a simulated machine, on which the program of a search trains in no time and is killed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.cli.runs.sweeps.search import search_of
from orchestrator.process import Process
from orchestrator.run_directory.checkpoints.commit_markers import committed, write_commit
from orchestrator.run_directory.events.ledger import LedgerEvent
from orchestrator.run_directory.events.search import SearchPlanned
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
from orchestrator.sweeps.submission import CellStart

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
        write_plan(sweep, with_metric(loaded, planned.metric))
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


def with_metric(loaded: LoadedSweep, metric: str | None) -> LoadedSweep:
    return replace(loaded, spec=loaded.spec.model_copy(update={"metric": metric}))


def searched(sweep: SweepDir) -> History:
    history = sweep.search()
    assert history is not None
    return history
