"""A launcher that goes on by itself: `run --detach`, and `submit` of jobs that are started from this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from orchestrator.errors import JobError
from orchestrator.launch.start_checks import check_startable
from orchestrator.run_directory.exits.classification import LogMarks
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import RUNTIME_MODULE, module_command
from orchestrator.spec.job import JobSpec

SECONDS_TO_START = 60.0


def start_in_background(run: RunDir, job: JobSpec, *, from_scratch: bool, module: str = RUNTIME_MODULE) -> str:
    """Start a launcher of its own session; returns the launch id. Raises JobError when it ends before it launched."""
    check_startable(run, job, from_scratch=from_scratch)
    run.logs.mkdir(exist_ok=True)
    marks = LogMarks.of(run)
    before = launch_id_of(run)
    options = ["--from-scratch"] if from_scratch else []
    with run.open_to_append(run.launcher_log) as log:
        pid = os.posix_spawn(
            sys.executable,
            module_command("orchestrator.launch", str(run.path), "--module", module, *options),
            os.environ,
            setsid=True,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
            ],
        )
    deadline = time.monotonic() + SECONDS_TO_START
    try:
        while (launch_id := launch_id_of(run)) in (None, before):
            has_ended = os.waitpid(pid, os.WNOHANG) != (0, 0)
            if has_ended or time.monotonic() > deadline:
                if not has_ended:
                    _give_up(pid)
                said = marks.tail(run, run.launcher_log).strip()
                raise JobError(
                    f"run {run.run_id} could not be started in the background: {said or 'it said nothing'}",
                    code="failed_background_start",
                )
            time.sleep(0.05)
    except KeyboardInterrupt:
        _give_up(pid)
        raise
    return str(launch_id)


def _give_up(launcher: int) -> None:
    """End a launcher that would launch a run that has been given up."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(launcher, signal.SIGKILL)
        os.waitpid(launcher, 0)


def launch_id_of(run: RunDir) -> str | None:
    last = run.events().last_launch
    return last.launch_id if last else None
