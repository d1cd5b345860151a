"""The follower's own loop: send as the run goes on, wait longer while that fails, and end with the run."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import sys
import threading
import time

from orchestrator.rundir import RunDir
from orchestrator.tracking.cursor import read_cursor
from orchestrator.tracking.description import read_target
from orchestrator.tracking.failures import explain
from orchestrator.tracking.follower import LOG_NAME
from orchestrator.tracking.sender import Sender

POLL_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 60.0
_LAST_ATTEMPTS = 3


class Follower:
    """Sends one run until its parent process is gone or asks it to finish, and then for a bounded time more."""

    def __init__(self, run: RunDir, parent: int, drain_seconds: float) -> None:
        self._run = run
        self._parent = parent
        self._drain_seconds = drain_seconds
        self._sender = Sender(run)
        self._finish = threading.Event()
        self._failure: str | None = None
        self._uri: str | None = None

    def follow(self) -> int:
        """Returns 0 when everything was sent."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # meant for the ranks, which may still save: what counts is their end
        if not read_target(self._run).enabled:
            return 0
        threading.Thread(target=self._watch, daemon=True).start()
        wait = POLL_SECONDS
        while not self._finish.is_set():
            wait = POLL_SECONDS if self._attempt() else min(2 * wait, LONGEST_WAIT_SECONDS)
            self._finish.wait(wait * random.uniform(0.75, 1.0))
        return self._finish_sending()

    def _finish_sending(self) -> int:
        self._sender.ending.process = self._parent
        for attempt in range(_LAST_ATTEMPTS):
            if self._attempt():
                return 0
            time.sleep(0.5 * (attempt + 1))
        self._say_what_is_left()
        return 1

    def _attempt(self) -> bool:
        try:
            self._uri = read_target(self._run).uri
            self._sender.send()
        except Exception as error:  # whatever MLflow or its back ends raise: nothing is lost, it is tried again
            failure = explain(error, self._uri)
            if failure != self._failure:
                self._log(f"not sent: {failure}; trying again")
            self._failure = failure
            return False
        if self._failure is not None:
            self._log("sending again")
        self._failure = None
        return True

    def _watch(self) -> None:
        """Notices a byte or the end of file on standard input, or that the parent is gone; then time is limited."""
        descriptor = sys.stdin.fileno()
        while not self._finish.is_set() and os.getppid() == self._parent:
            if select.select([descriptor], [], [], 0.5)[0]:
                self._sender.ending.cause = os.read(descriptor, 100).decode(errors="replace").strip() or None
                break
        self._finish.set()
        time.sleep(self._drain_seconds)
        self._say_what_is_left()
        os._exit(1)  # the main thread may be waiting for a server that never answers

    def _say_what_is_left(self) -> None:
        cursor = read_cursor(self._run)
        size = self._run.metrics_file.stat().st_size if self._run.metrics_file.exists() else 0
        left = size - (cursor.offset if cursor else 0)
        self._log(
            f"ended with {left} bytes of {self._run.metrics_file.name} not sent; the next start of this run sends "
            f"them, or `orchestrator sync {self._run.run_id}`"
        )

    def _log(self, message: str) -> None:
        # A full disk must not end the follower: it sends again once there is room.
        with contextlib.suppress(OSError), open(self._run.logs / LOG_NAME, "a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
