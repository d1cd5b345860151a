"""Starting the process that tells, so that nothing of a run ever waits for somebody else's program or server."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from orchestrator.files.stored_files import open_to_append
from orchestrator.launch.notifications.occasions import occasion_of, wanted
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import module_command
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

LOG_NAME = "notifications.log"
MODULE = "orchestrator.launch.notifications"
_SECONDS_TO_START = 5.0

Notifier = subprocess.Popen[bytes]


def begin(run: RunDir, job: JobSpec, launch_id: str) -> Notifier | None:
    """Start the process that tells of this start and of its end: when `over` is called, or this process is gone. Nobody
    waits for it. None where nobody asked for it, or where no process can be had.
    """
    if not job.notifications.ways:
        return None
    return _start(run, launch_id, ["--beside"], stdin=subprocess.PIPE)


def over(notifier: Notifier | None) -> None:
    """The start has ended, and the events say how."""
    if notifier is not None and notifier.stdin is not None:
        with contextlib.suppress(BrokenPipeError), notifier.stdin:
            notifier.stdin.write(b"\n")
        notifier.returncode = 0  # it goes on by itself, and nobody will ask how it went


def tell_now(run: RunDir, job: JobSpec, launch_id: str, most_seconds: float) -> None:
    """Tell what the events say of this start by now, and wait for that, where whoever is left is ended with us."""
    if not wanted(run, job.notifications, occasion_of(run.events(), launch_id)):
        return
    notifier = _start(run, launch_id, [], stdin=subprocess.DEVNULL)
    if notifier is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            notifier.wait(most_seconds)


def tell_of_start(run: RunDir, job: JobSpec, launch_id: str) -> None:
    """Tell that a run has started, where somebody asked for that; nobody waits for it."""
    if wanted(run, job.notifications, "started"):
        notifier = _start(run, launch_id, ["--started"], stdin=subprocess.DEVNULL)
        if notifier is not None:
            notifier.returncode = 0  # as above


def tell_of_withdrawn(runs: Iterable[RunDir]) -> None:
    """Tell, one after the other, that runs were taken out of a queue, where no process of theirs is left to do so;
    nobody waits for it.
    """
    wanting = [run for run in runs if wanted(run, load_resolved(run.resolved()).notifications, "stopped")]
    if wanting:
        arguments = ["--withdrawn", *(str(run.path) for run in wanting)]
        notifier = start_telling(MODULE, arguments, wanting[0].logs, subprocess.DEVNULL)
        if notifier is not None:
            notifier.returncode = 0  # as above


def longest(job: JobSpec) -> float:
    """Seconds within which everything has been told, or has failed."""
    return _SECONDS_TO_START + job.notifications.timeout * len(job.notifications.ways)


def _start(run: RunDir, launch_id: str, options: Sequence[str], stdin: int) -> Notifier | None:
    return start_telling(MODULE, [str(run.path), launch_id, *options], run.logs, stdin)


def start_telling(module: str, arguments: Sequence[str], folder: Path, stdin: int) -> Notifier | None:
    """Start a program that tells, with its log in the folder if that can be; None where it cannot be started."""
    command = module_command(module, *arguments)
    with contextlib.ExitStack() as opened:
        log: int | IO[bytes] = subprocess.DEVNULL
        with contextlib.suppress(OSError):  # a full disk is what is told of, among other things
            folder.mkdir(exist_ok=True)
            log = opened.enter_context(open_to_append(folder / LOG_NAME, folder.parent))
        try:
            return subprocess.Popen(command, stdin=stdin, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)
        except OSError:  # no process to be had: the run goes on all the same
            return None
