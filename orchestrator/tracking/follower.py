"""Starting and ending the process that sends a run's metrics to MLflow, so that no step ever waits for a server."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import module_command

LOG_NAME = "mlflow.log"
SENDER = "orchestrator.tracking"
DRAIN_SECONDS = 15.0
"""How long the follower goes on sending after its parent has ended or asked it to finish."""
_LOWER_PRIORITY = 10


def start_follower(run: RunDir, drain_seconds: float = DRAIN_SECONDS) -> subprocess.Popen[bytes]:
    """Start the follower of a run. It ends when `finish_follower` is called or this process is gone, at most
    `drain_seconds` later. Raises OSError where there is no process or no log to be had.

    Costs this process nothing beyond the start. The follower is a session of its own: signals meant for the ranks
    do not reach it. What it has to say is in logs/mlflow.log.
    """
    follower = _start(run, drain_seconds, subprocess.PIPE)
    # The ranks come first, from the start: importing MLflow takes as long as a rank's imports.
    with contextlib.suppress(OSError):  # it may be gone already, or this system forbids it
        os.setpriority(os.PRIO_PROCESS, follower.pid, os.getpriority(os.PRIO_PROCESS, 0) + _LOWER_PRIORITY)
    return follower


def send_the_end(run: RunDir, most_seconds: float = 0.0) -> None:
    """Start a follower of a run that has ended, for what its own one could not send because it was ended as well. It
    needs nobody and is gone soon; wait for it at most so long, where it would be ended with this process.

    Where none can be started, and for what it cannot send, there is `orchestrator sync`.
    """
    try:
        follower = _start(run, DRAIN_SECONDS, subprocess.DEVNULL)
    except OSError:
        return
    try:
        follower.wait(most_seconds)
    except subprocess.TimeoutExpired:
        follower.returncode = 0  # it goes on by itself, and nobody will ask how it went


def send_in_background(places: Sequence[Path]) -> None:
    """Start a process that sends what is not sent yet of runs, and deletes in MLflow what lies in the trash; `places`:
    their folders. It needs nobody, and for what it cannot do there is `orchestrator sync`.
    """
    if not places:
        return
    with contextlib.suppress(OSError):
        sender = subprocess.Popen(
            module_command(SENDER, "--once", *map(str, places)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        sender.returncode = 0  # it goes on by itself, and nobody will ask how it went


def _start(run: RunDir, drain_seconds: float, stdin: int) -> subprocess.Popen[bytes]:
    run.logs.mkdir(parents=True, exist_ok=True)
    command = module_command(SENDER, str(run.path.resolve()), "--follow")
    with run.open_to_append(run.logs / LOG_NAME) as log:
        return subprocess.Popen(
            [*command, "--parent", str(os.getpid()), "--drain-seconds", str(drain_seconds)],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def finish_follower(
    follower: subprocess.Popen[bytes], timeout: float = DRAIN_SECONDS + 5, cause: str | None = None
) -> bool:
    """Ask the follower to send the rest and end; True when everything was sent.

    `cause`: why the run ends ("completed", "stopped"), where neither its events nor its exit records say so yet.
    Returns within `timeout` seconds: a follower that takes longer is killed, and what is left is sent by the next
    start of the run or by `orchestrator sync`.
    """
    if follower.stdin is not None and not follower.stdin.closed:
        # A line and not only the end of file: a forked child of this process may hold the pipe open.
        with contextlib.suppress(BrokenPipeError), follower.stdin:  # it may have ended already
            follower.stdin.write(f"{cause or ''}\n".encode())
    try:
        return follower.wait(timeout) == 0
    except subprocess.TimeoutExpired:
        follower.kill()
        follower.wait()
        return False
