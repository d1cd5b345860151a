"""Cells handed to an executor, or to a program that runs them on this machine (`python -m orchestrator.sweeps`)."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from orchestrator.errors import JobError, UserError
from orchestrator.files.stored_files import open_stored, open_to_append
from orchestrator.launch.code.snapshot import place_of
from orchestrator.launch.executor_protocol import Start, executor_of, submit
from orchestrator.launch.start_checks import saved_nothing
from orchestrator.run_directory.events.ledger import CellsSubmitted
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.safe_path import RUNTIME_MODULE, module_command
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.request import Array, Request, Task

_SECONDS_TO_START = 60.0
_MOST_SAID = 1 << 20
_GPU_DEVICE = re.compile(r"nvidia(\d+)")


@dataclass(frozen=True)
class CellStart:
    """A cell to start: its run directory exists unless this is a dry run. `stop_at`, `of_search`: as of a Task."""

    id: str
    name: str
    job: JobSpec
    run: RunDir
    stop_at: int | None = None
    of_search: bool = False


@dataclass(frozen=True)
class SweepStart:
    """Cells that an executor is to start. `max_parallel`: how many at once."""

    sweep: SweepDir
    starts: Sequence[CellStart]
    cluster: ClusterSpec | None
    max_parallel: int | None
    dry_run: bool = False
    module: str = RUNTIME_MODULE


@runtime_checkable
class SubmitsCells(Protocol):
    """An executor that takes many cells at once."""

    def submit_cells(self, asked: SweepStart) -> list[dict[str, Any]]:
        """Submit cells whose run directories exist, and write that into their event logs and the sweep's ledger.

        Returns for each array its `job_id` and its number of `tasks`; for a dry run its `script`, and writes nothing.
        """


def submit_cells(asked: SweepStart) -> list[dict[str, Any]]:
    """Submit cells to their executor, at once where it can do that, else one by one; see `SubmitsCells`."""
    chosen = executor_of(asked.starts[0].job)
    if isinstance(chosen, SubmitsCells):
        return chosen.submit_cells(asked)
    if asked.max_parallel is not None:
        raise UserError(
            f"the executor {chosen.name} starts all cells of a sweep: leave out how many are at once",
            code="executor_without_limit",
        )
    answers: list[dict[str, Any]] = []
    for each in asked.starts:
        place = place_of(each.run, each.job, copy=not asked.dry_run)
        start = Start(each.job, place, asked.cluster, module=asked.module)
        if asked.dry_run:
            answers.append({"script": chosen.render(start).run, "tasks": 1})
            continue
        start = replace(start, from_scratch=saved_nothing(each.run, each.run.events()))
        job_id = submit(chosen, start).job_id
        submitted = CellsSubmitted(how=chosen.name, cluster=start.where, max_parallel=None, jobs={each.id: job_id})
        asked.sweep.append(submitted)
        answers.append({"job_id": job_id, "tasks": 1})
    return answers


def local_request(
    sweep: SweepDir, starts: Sequence[CellStart], *, max_parallel: int | None, module: str = RUNTIME_MODULE
) -> Request:
    """The cells for this machine, `max_parallel` at a time (one by default, and where all want the same hosts)."""
    gpus = visible_gpus()
    tasks = []
    for start in starts:
        command = module_command("orchestrator.launch", str(start.run.path), "--module", module)
        command += ["--from-scratch"] if saved_nothing(start.run, start.run.events()) else []
        is_elsewhere = start.job.runtime.device == "cpu" or start.job.launch.on_hosts
        wanted = 0 if is_elsewhere else start.job.processes_per_node
        task = Task(start.id, start.name, str(start.run.path), command, wanted, sweep.cancels(start.id))
        tasks.append(replace(task, stop_at=start.stop_at, of_search=start.of_search))
    return Request(
        sweep_dir=str(sweep.path),
        arrays=[Array({}, tasks)],
        max_parallel=1 if any(start.job.launch.on_hosts for start in starts) else max_parallel or 1,
        max_requeues=max((start.job.launch.max_requeues for start in starts), default=0),
        gpus=gpus,
    )


def visible_gpus() -> list[str]:
    """The GPUs that programs started here see, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    numbers = (match.group(1) for path in Path("/dev").glob("nvidia*") if (match := _GPU_DEVICE.fullmatch(path.name)))
    return sorted(numbers, key=int)


def start_driver(sweep: SweepDir, request: Request) -> None:
    """Start the program that runs cells on this machine. Returns when it has written down which cells are its own.
    Raises JobError when it could not.
    """
    before = len(sweep.submissions_made())
    asked = sweep.path / "request.json"
    write_atomically(asked, request.to_json())
    start_program(sweep, module_command("orchestrator.sweeps"), asked, lambda: len(sweep.submissions_made()) > before)


def start_program(sweep: SweepDir, command: list[str], given: Path, has_begun: Callable[[], bool]) -> None:
    """Start a program of a sweep in a session of its own: Ctrl-C does not reach it. `given`: its standard input.
    Returns when it has begun. Raises JobError when it ends before.
    """
    with open_to_append(sweep.driver_log, sweep.path) as output:
        start = output.seek(0, os.SEEK_END)
        pid = os.posix_spawn(
            sys.executable,
            command,
            os.environ,
            setsid=True,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, str(given), os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, output.fileno(), 2),
            ],
        )
    deadline = time.monotonic() + _SECONDS_TO_START
    while not has_begun():
        if os.waitpid(pid, os.WNOHANG) != (0, 0) or time.monotonic() > deadline:
            with open_stored(sweep.driver_log, sweep.path) as output:
                output.seek(start)
                said = output.read(_MOST_SAID).decode(errors="replace").strip()
            raise JobError(
                f"the cells could not be started: {said[-2000:] or 'no reason was given'}", code="cells_not_started"
            )
        time.sleep(0.05)
