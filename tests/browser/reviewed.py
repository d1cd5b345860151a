"""A folder of runs for the pages to show, all made by real training: what went well, what did not, and a sweep.

Made once for all tests of a session and all its processes. Whoever changes something works on a copy (`copied`).
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from support.event_log import append_event, append_to_ledger, lines_of
from support.faults import Ranks, wait_for_step
from support.fixtures import tokenized
from support.held import HOLD, hold_at
from support.made_once import made_once
from support.rank_processes import Started
from support.training import four_layer_job, layout, logs

from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import add_generation, create_run
from orchestrator.launch.scripts.render import render
from orchestrator.process import Process
from orchestrator.run_directory.exits.classification import LogMarks, classify
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_resolved
from orchestrator.sweeps.ledger import SweepDir, sweep_dir
from orchestrator.sweeps.loading import load_sweep
from orchestrator.sweeps.plans import write_plan

SWEEP = "rates"
FAILED_CELL = "lr=1e-2,gbs=4"
SMALL: dict[str, Any] = {"model": {"num_layers": 2}, "batch": {"micro_batch_size": 4}}
"""No page shows more of a model with more layers, or of more micro-batches."""
_CODE = CodeState({"commit": "0" * 40, "branch": "main", "dirty": False}, b"")

SLOW = """
import time
import orchestrator.runtime.loop as loop
plain = loop.train_step
def train_step(session):
    time.sleep({seconds})
    while session.state.iteration >= {last} and not session.launch.run.stop_file.exists():
        time.sleep(0.02)
    return plain(session)
loop.train_step = train_step
"""
SAVED = """
from orchestrator.runtime.callbacks.saving import CheckpointSaving
save = CheckpointSaving.on_end
def on_end(saving, session):
    if str(session.launch.run.path) == {run!r}:
        save(saving, session)
CheckpointSaving.on_end = on_end
"""
"""At its end a single run is saved: of the others no page shows a checkpoint."""
OUT_OF_MEMORY = """
import orchestrator.runtime.loop as loop
plain = loop.train_step
def train_step(session):
    if session.state.iteration == 5 and str(session.launch.run.path) == {run!r}:
        raise MemoryError("Cannot allocate memory: 3.5 GiB for the gradients")
    return plain(session)
loop.train_step = train_step
"""
# Two functions that call each other: Python shows every call, and leaves none of them out as repeated.
BROKEN_STEP = """
import sys

from orchestrator.runtime.steps.gpt import NextToken


def descend(depth):
    return climb(depth - 1)


def climb(depth):
    if depth < 0:
        raise ValueError("no <b>weights</b> & no luck: the table of penalties is empty")
    return descend(depth - 1)


class Penalized(NextToken):
    def loss(self, output, batch):
        sys.setrecursionlimit(10_000)
        return descend(4_000)
"""
SWEEP_OF_TWELVE = """
sweep:
  name: rates
  grid:
    optimizer.lr: [3e-4, 1e-3, 3e-3, 1e-2]
    batch.global_batch_size: [4, 8, 16, 7]
  metric: validation/loss
"""


@dataclass(frozen=True)
class Reviewed:
    """The folder and what is in it. Each of these jobs has one run."""

    folder: Path
    ranks: Ranks

    @property
    def runs_dir(self) -> Path:
        return self.folder / "runs"

    @property
    def completed(self) -> RunDir:
        """60 steps over two sources in two pipeline stages, with evaluations."""
        return self.run("small")

    @property
    def resumed(self) -> RunDir:
        """Killed at step 25 or so of 40, gone on from 20, completed."""
        return self.run("resumed")

    @property
    def diverged(self) -> RunDir:
        """Failed: no update is finite."""
        return self.run("diverged")

    @property
    def broken(self) -> RunDir:
        """Failed in a step of the user's own, with a stack trace of 10,000 lines and marks of HTML in its message."""
        return self.run("broken")

    @property
    def changed(self) -> RunDir:
        """Completed, then gone on with another learning rate to twice the steps: two resolved specs."""
        return self.run("changed")

    @property
    def sweep(self) -> SweepDir:
        """`rates`: 12 cells, of which FAILED_CELL ran out of memory; four more cannot run."""
        return sweep_dir(SWEEP, self.runs_dir)

    def run(self, name: str) -> RunDir:
        """The run of a job."""
        [path] = (self.runs_dir / name).glob("*")
        return RunDir(path)

    def cell(self, name: str) -> RunDir:
        """The run of a cell."""
        return next(self.sweep.run(entry) for entry in self.sweep.planned().cells if entry.name == name)

    def copied(self, folder: Path) -> Reviewed:
        """The same in another folder, to be changed or added to."""
        shutil.copytree(self.runs_dir, folder / "runs")
        return Reviewed(folder, self.ranks)

    @contextmanager
    def live(self, job: JobSpec, *, seconds: float = 0.2) -> Iterator[RunDir]:
        """A run of a job that trains meanwhile, `seconds` a step, and waits before its last ones until it is asked to
        stop; one that is yet at work at the end is killed. Use it on a copy.
        """
        assert job.schedule.train_iters is not None
        run = created(job, self.runs_dir)
        program = self.folder / f"slow-{job.name}.py"
        program.write_text(SLOW.format(seconds=seconds, last=job.schedule.train_iters - 4))
        launch = Launch(self.ranks, run, job, "live")
        launch.begin(inject=program)
        wait_for_step(run, 1, saved=False)
        launcher = Thread(target=launch.end)
        launcher.start()
        try:
            yield run
        finally:
            if launcher.is_alive():
                launch.started.signal(signal.SIGKILL)
            launcher.join()


class Launch:
    """One launch as the launcher makes it, with ranks that start fast: its events, and why it ended."""

    def __init__(self, ranks: Ranks, run: RunDir, job: JobSpec, launch_id: str) -> None:
        self.ranks, self.run, self.job, self.launch_id = ranks, run, job, launch_id
        self.marks = LogMarks.of(run)

    def announce(self) -> None:
        """What there is before its ranks are."""
        write_atomically(self.run.launch_script, render(self.job, run_dir=self.run.path, python=sys.executable))
        append_event(self.run, "launched", launch_id=self.launch_id, **Process.current().to_record())

    def begin(self, **options: Any) -> None:
        self.announce()
        self.started: Started = self.ranks.start(self.run, self.job, launch_id=self.launch_id, **options)

    def end(self) -> str:
        """Wait for it; the cause of its end."""
        return self.tell_the_end(self.started.wait())

    def tell_the_end(self, code: int, **more: float) -> str:
        """The cause of it. `more`: of the event."""
        end = classify(self.run, self.launch_id, code, self.marks)
        told = {"cause": end.cause, "message": end.message, "iteration": end.iteration}
        append_event(self.run, "exited", launch_id=self.launch_id, code=code, **told, **more)
        return end.cause

    def report_killed(self) -> None:
        """What torchrun says in the launcher's log of ranks that were killed."""
        report = "E1122 12:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:874] failed\n"
        for rank, pid in enumerate(self.started.ranks):
            report += f"  host      : node1\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : -9 (pid: {pid})\n"
        with open(self.run.launcher_log, "a") as log:
            log.write(report)


def created(job: JobSpec, runs_dir: Path) -> RunDir:
    """A new run of a job."""
    return create_run(job, dump_resolved(job), runs_dir, _CODE)


def see_through(ranks: Ranks, run: RunDir, job: JobSpec, launch_id: str, cause: str, **options: Any) -> RunDir:
    """Launch a run and wait for its end, which must have that cause."""
    launch = Launch(ranks, run, job, launch_id)
    launch.begin(**options)
    ended = launch.end()
    assert ended == cause, f"{ended}: {logs(run)[-4000:]}"
    return run


def end_together(ranks: Ranks, runs: Mapping[RunDir, str], launch_id: str = "test", inject: Path | None = None) -> None:
    """Launch runs of one rank and see them through, one after the other in the same process; each must end with its
    cause. After one that fails the next has another process.
    """
    launches = [Launch(ranks, run, load_resolved(run.resolved()), launch_id) for run in runs]
    for launch in launches:
        launch.announce()
    ranks.train_several([*runs], 1, launch_id=launch_id, inject=inject)
    for launch in launches:
        cause = runs[launch.run]
        ended = launch.tell_the_end(int(cause != "completed"), time=lines_of(launch.run)[-1]["time"])
        assert ended == cause, f"{ended}: {logs(launch.run)[-4000:]}"


def reviewed_in(folder: Path, ranks: Ranks) -> Reviewed:
    """The runs in a folder, which are made where another process has not made them."""
    return Reviewed(made_once(folder, partial(_make, ranks)), ranks)


def _make(ranks: Ranks, folder: Path) -> None:
    (folder / "runs").mkdir()
    makers = (_completed, _resumed_and_others)
    with ThreadPoolExecutor(len(makers)) as pool:
        for each in [pool.submit(maker, folder, ranks) for maker in makers]:
            each.result()


def _resumed_and_others(folder: Path, ranks: Ranks) -> None:
    """All that one rank trains: a killed run, then those that nobody disturbs, and at last those that go on."""
    resumed, changed = _killed(folder, ranks), _to_be_changed(folder)
    cells, failing = _planned_cells(folder)
    program = folder / "first.py"
    steps = _broken_step(folder)
    injected = OUT_OF_MEMORY.format(run=str(failing.path)) + SAVED.format(run=str(changed.path))
    program.write_text(f"{injected}\nimport sys\nsys.path.insert(0, {steps!r})\n")
    first = {changed: "completed", **dict.fromkeys(cells, "completed"), failing: "host_out_of_memory"}
    end_together(ranks, {**first, _diverging(folder): "nan", _broken(folder): "bug"}, "first", inject=program)
    other = four_layer_job("changed", schedule={"train_iters": 40}, optimizer={"lr": 5e-4}, **SMALL)
    add_generation(changed, other, dump_resolved(other))
    end_together(ranks, {resumed: "completed", changed: "completed"}, "second")


def _completed(folder: Path, ranks: Ranks) -> None:
    first, second = (tokenized(package, folder / "text" / package, "--append-eod") for package in ("json", "email"))
    job = four_layer_job(
        "small",
        model={**SMALL["model"], "vocab_size": None},
        batch=SMALL["batch"],
        data={
            "random_tokens": False,
            "blend": [{"path": first, "weight": 3}, {"path": second, "weight": 1}],
            "split": "8,2,0",
        },
        parallelism=layout(pp=2),
        schedule={"train_iters": 60},
        evaluation={"eval_interval": 15, "eval_iters": 1, "eval_at_start": True},
        checkpoint={"save_interval": 20},
    )
    see_through(ranks, created(job, folder / "runs"), job, "small-1", "completed")


def _killed(folder: Path, ranks: Ranks) -> RunDir:
    checkpoint = {"save_interval": 10, "async_save": False}  # that of step 20 is there when the next step is
    job = four_layer_job("resumed", schedule={"train_iters": 40}, checkpoint=checkpoint, **SMALL)
    run = created(job, folder / "runs")
    program = folder / "held.py"
    program.write_text(HOLD)
    launch = Launch(ranks, run, job, "resumed-1")
    launch.begin(inject=program, env=hold_at(26))
    wait_for_step(run, 24)
    launch.started.signal(signal.SIGKILL)
    launch.started.wait()
    launch.report_killed()
    assert launch.end() == "killed"
    return run


def _diverging(folder: Path) -> RunDir:
    job = four_layer_job(
        "diverged",
        **SMALL,
        optimizer={"lr": 1e30},
        schedule={"lr_warmup_iters": 0, "lr_decay_style": "constant"},
        runtime={"max_bad_steps": 4},
    )
    return created(job, folder / "runs")


def _broken_step(folder: Path) -> str:
    """The folder of a step of one's own."""
    steps = folder / "steps"
    steps.mkdir()
    (steps / "penalties.py").write_text(BROKEN_STEP)
    return str(steps)


def _broken(folder: Path) -> RunDir:
    job = four_layer_job("broken", runtime={"train_step": "penalties:Penalized"}, **SMALL)
    return created(job, folder / "runs")


def _to_be_changed(folder: Path) -> RunDir:
    return created(four_layer_job("changed", **SMALL), folder / "runs")


def _planned_cells(folder: Path) -> tuple[list[RunDir], RunDir]:
    """Plan the sweep as `sweep run` does; the runs of its cells, and that of FAILED_CELL."""
    schedule = {"train_iters": 20, "lr_warmup_iters": 2}
    base = four_layer_job("cell", schedule=schedule, evaluation={"eval_interval": 10, "eval_iters": 1}, **SMALL)
    (folder / "cell.yaml").write_text(dump_resolved(base))
    (folder / "rates.yaml").write_text(f"base: cell.yaml\n{SWEEP_OF_TWELVE}")
    sweep = sweep_dir(SWEEP, folder / "runs")
    planned, _ = write_plan(sweep, load_sweep([folder / "rates.yaml"]))
    jobs = {entry.id: "local" for entry in planned.cells}
    gone = Process.current().to_record() | {"started": 0}  # a driver that has ended since
    append_to_ledger(sweep, "submitted", how="local", cluster=None, max_parallel=2, jobs=jobs, driver=gone)
    runs = {entry.name: sweep.run(entry) for entry in planned.cells}
    failing = runs.pop(FAILED_CELL)
    return [*runs.values()], failing
