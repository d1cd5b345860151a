"""Cells in submitit's hands: what a job of a cell does, and some cells at a time on this machine. Light code starts it
as a program (`python -m orchestrator.sweeps`).

A cell is carried on by submitit's own protocol: SLURM's notice reaches the task, which passes it on; the training saves
and ends; then submitit calls `checkpoint`, stores what it returns, and puts the task back into the queue. What the
cells come to is read from their run directories, never from submitit's results.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Any

from submitit import JobEnvironment, LocalExecutor
from submitit.core.utils import DelayedSubmission

from orchestrator.errors import JobError
from orchestrator.launch.processes.child_commands import tied
from orchestrator.launch.processes.launch_processes import REQUEUE_CODE_VARIABLE
from orchestrator.process import Process
from orchestrator.run_directory.events.ledger import CellsSubmitted
from orchestrator.run_directory.events.types import Launched
from orchestrator.run_directory.rundir import STOP_AT_VARIABLE, RunDir
from orchestrator.sweeps.ending import tell_of_sweep
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.request import REQUEUE_CODE, Request, Task

NOTICE = signal.SIGUSR1
"""What SLURM sends some time before it ends a task; see __main__.py."""

_PASSED_ON = (NOTICE, signal.SIGTERM, signal.SIGINT)
_POLL_SECONDS = 0.2
_REQUEUE_ATTEMPTS = 20
_SECONDS_BETWEEN_ATTEMPTS = 15.0
_NO_TIME_LIMIT = 10 * 365 * 24 * 60
"""Minutes: submitit's local executor wants some limit."""


@dataclass
class CellTask:
    """What submitit stores and calls: one cell, trained to its end or to the next notice."""

    sweep_dir: str
    task: Task
    devices: str | None = None
    """CUDA_VISIBLE_DEVICES of a local cell."""

    def __call__(self) -> None:
        """Raises JobError when the training failed, so that the scheduler shows it too."""
        if self._is_cancelled():
            print(f"cell {self.task.name} was cancelled before it started", flush=True)
            return
        if not _is_local() and self._is_replaced():
            print(f"cell {self.task.name} was started again before this job began: that job trains it", flush=True)
            return
        code, noticed = self._see_through()
        if code == REQUEUE_CODE or (noticed and self._has_stopped()):
            self._requeue()
        if not _is_local() and not self.task.of_search:  # the driver of local cells tells, and so does a search
            tell_of_sweep(SweepDir(Path(self.sweep_dir)), wait=True)
        if code != 0 and not (self.task.stop_at is not None and self._has_stopped()):
            raise JobError(
                f"cell {self.task.name} ended with exit code {code}: see {self.task.run_dir}", code="cell_failed"
            )

    def checkpoint(self) -> DelayedSubmission:
        """submitit's protocol: what to call after the requeue. The run directory holds all there is to continue."""
        return DelayedSubmission(self)

    def _see_through(self) -> tuple[int, bool]:
        """Run the command to its end; its exit code, and whether the notice came."""
        run = RunDir(Path(self.task.run_dir))
        run.logs.mkdir(exist_ok=True)
        before = _launches(run)
        is_starting = _is_local()
        with run.open_to_append(run.launcher_log) as log:
            child = subprocess.Popen(
                tied(*self.task.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,
            )
        with _passing_on(child) as received:
            while (code := child.poll()) is None:
                if is_starting:  # who cancels it now takes it for one that waits, and leaves no word but in the ledger
                    is_starting = _launches(run) == before
                    if self._is_cancelled():
                        child.terminate()
                        is_starting = False
                time.sleep(_POLL_SECONDS)
        return (128 - code if code < 0 else code), NOTICE in received

    def _is_cancelled(self) -> bool:
        """Whether it was cancelled after it was handed out."""
        return SweepDir(Path(self.sweep_dir)).cancels(self.task.cell) > self.task.cancels

    def _is_replaced(self) -> bool:
        """Whether the cell was handed out once more because nobody could write this job down: the program that had
        submitted it was killed.
        """
        made = SweepDir(Path(self.sweep_dir)).submissions_made()[self.task.submissions :]
        ids = [jobs[self.task.cell] for event in made if self.task.cell in (jobs := event.jobs or {})]
        return bool(ids) and JobEnvironment().job_id not in ids

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, REQUEUE_CODE_VARIABLE: str(REQUEUE_CODE)}
        if self.task.stop_at is not None:
            environment[STOP_AT_VARIABLE] = str(self.task.stop_at)
        if _is_local():
            environment.pop("CUDA_VISIBLE_DEVICES", None)  # submitit's, which hides all
            if self.devices is not None:
                environment["CUDA_VISIBLE_DEVICES"] = self.devices
        return environment

    def _has_stopped(self) -> bool:
        """Whether the last launch saved and stopped, on this machine, where nobody says so by an exit code."""
        last = RunDir(Path(self.task.run_dir)).events().last_launch
        return last is not None and last.exited is not None and last.exited.cause == "stopped"

    def _requeue(self) -> None:
        """Have submitit put this task back into the queue: its handler of the notice does that, and ends this process.

        A controller that is away for a while is asked again: the training has ended, and nothing is lost by waiting.
        """
        for attempt in range(1, _REQUEUE_ATTEMPTS + 1):
            try:
                signal.raise_signal(NOTICE)
                return
            except subprocess.SubprocessError as error:
                print(f"attempt {attempt} to requeue failed: {error}", flush=True)
                time.sleep(_SECONDS_BETWEEN_ATTEMPTS)


def _launches(run: RunDir) -> int:
    return len(run.events().all(Launched))


def _is_local() -> bool:
    return "SUBMITIT_LOCAL_JOB_ID" in os.environ


@contextmanager
def _passing_on(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Pass signals on to a child; yields those that came. submitit's handlers are back in place afterwards."""
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        child.send_signal(number)

    previous = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run_here(request: Request) -> None:
    """Run the cells on this machine, some at a time, until all have ended or the rest was cancelled."""
    sweep = SweepDir(Path(request.sweep_dir))
    waiting = [task for array in request.arrays for task in array.tasks]
    driver = Process.current().to_record()
    jobs = {task.cell: "local" for task in waiting}
    parallel = request.max_parallel
    sweep.append(CellsSubmitted(how="local", cluster=None, max_parallel=parallel, jobs=jobs, driver=driver))
    local = LocalCells(sweep, request.gpus, request.max_requeues)
    while waiting or local.running:
        local.settle()
        while waiting and len(local.running) < (request.max_parallel or 1):
            task = waiting[0]
            if sweep.cancels(task.cell) > task.cancels or local.start(task) is not None:
                waiting.pop(0)
            else:
                break
        time.sleep(_POLL_SECONDS)
    tell_of_sweep(sweep, wait=False)


class LocalCells:
    """Cells that run on this machine, each on GPUs of its own."""

    def __init__(self, sweep: SweepDir, gpus: list[str], max_requeues: int) -> None:
        """`gpus`: those that cells share."""
        self._sweep, self._gpus, self._max_requeues = sweep, gpus, max_requeues
        self.running: dict[str, tuple[Any, list[str]]] = {}
        """By cell, those that this process has started: submitit's job, and its GPUs."""
        self.others: dict[str, list[str]] = {}
        """The GPUs of those that an earlier program has started, by cell."""
        sweep.submitit.mkdir(parents=True, exist_ok=True)

    def settle(self) -> None:
        """Take note of those that have ended."""
        for cell in [cell for cell, (job, _) in self.running.items() if job.done()]:
            del self.running[cell]

    def room_for(self, task: Task) -> list[str] | None:
        """The GPUs that a cell would get; None where too few are free."""
        taken = {gpu for gpus in (*(each for _, each in self.running.values()), *self.others.values()) for gpu in gpus}
        free = [gpu for gpu in self._gpus if gpu not in taken]
        needed = min(task.gpus, len(self._gpus))
        return free[:needed] if needed <= len(free) else None

    def start(self, task: Task) -> list[str] | None:
        """Start a cell; its GPUs, None where too few are free for it."""
        devices = self.room_for(task)
        if devices is None:
            return None
        executor = LocalExecutor(
            self._sweep.submitit, max_num_timeout=self._max_requeues + 1, python=f"{quote(sys.executable)} -P"
        )
        executor.update_parameters(timeout_min=_NO_TIME_LIMIT)
        cell = CellTask(str(self._sweep.path), task, ",".join(devices) if devices else None)
        self.running[task.cell] = executor.submit(cell), devices
        return devices
