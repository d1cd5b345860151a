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
from collections.abc import Callable

from orchestrator.errors import MissingDependency
from orchestrator.quantities import timestamp
from orchestrator.run_directory.events.types import Launched
from orchestrator.run_directory.rundir import RunDir, in_command
from orchestrator.tracking.follower import LOG_NAME
from orchestrator.tracking.trackers import Tracker, asked_for, broken, tracker_of

POLL_SECONDS = 2.0
LAST_ATTEMPTS = 3


class Follower:
    """Sends one run until its parent process is gone or asks it to finish, and then for a bounded time more. Each of
    its trackers has a thread, so that one that hangs keeps no other waiting.
    """

    def __init__(self, run: RunDir, parent: int, drain_seconds: float) -> None:
        self._run = run
        self._parent = parent
        self._drain_seconds = drain_seconds
        self._lines: list[Line] = []
        self._finish = threading.Event()

    def follow(self) -> int:
        """Returns 0 when everything was sent."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # meant for the ranks, which may still save: what counts is their end
        missing = False
        for name in asked_for(self._run):
            try:
                self._lines.append(Line(tracker_of(self._run, name), self._log))
            except MissingDependency as error:
                self._log(str(error))
                missing = True
            except Exception as error:  # whatever a broken package raises: the other trackers go on
                self._log(f"nothing is sent to {name}: {broken(error)}")
                missing = True
        if not self._lines:
            return int(missing)
        threading.Thread(target=self._watch, daemon=True).start()
        threads = [threading.Thread(target=line.follow, args=(self._finish,)) for line in self._lines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for line in self._lines:
            self._say_what_is_left(line)
        return int(missing or not all(line.is_done for line in self._lines))

    def _watch(self) -> None:
        """Sees the end of the run; then time is limited, whatever goes wrong here."""
        said = self._wait_for_the_end()
        deadline = time.monotonic() + self._drain_seconds
        try:
            for line in self._lines:
                line.tracker.ending.cause = said.decode(errors="replace").strip() or None
                line.tracker.ending.process = self._parent
            if not said:
                self._wait_for_the_launcher(self._drain_seconds / 2)
        except Exception as error:  # a disk that does not answer; the thread of this must go on
            self._log(f"the launcher's record of the end is missing: {error}")
        finally:
            self._finish.set()
        try:
            time.sleep(max(0.0, deadline - time.monotonic()))
            for line in self._lines:
                self._say_what_is_left(line)
        finally:
            os._exit(1)  # a thread may be waiting for a server that never answers

    def _wait_for_the_end(self) -> bytes:
        """Until there is something on standard input or its end, or the parent is gone; what was there."""
        descriptor = sys.stdin.fileno()
        while not self._finish.is_set() and os.getppid() == self._parent:
            try:
                if select.select([descriptor], [], [], 0.5)[0]:
                    return os.read(descriptor, 100)
            except OSError:  # a pipe that is broken is at its end
                break
        return b""

    def _wait_for_the_launcher(self, seconds: float) -> None:
        """A process that ended without a word is gone a little before its launcher says why; the lines go on sending
        meanwhile. Without a launcher nothing is waited for.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            events = self._run.events()
            launched = events.last(Launched)
            if launched is None or events.has_ended(launched.launch_id):
                return
            time.sleep(0.25)

    def _say_what_is_left(self, line: Line) -> None:
        if line.is_done:
            return
        self._log(
            f"ended with {line.tracker.bytes_left()} bytes of {self._run.metrics_file.name} not sent; the next start "
            f"of this run sends them, or `orchestrator sync {in_command(self._run)}`"
        )

    def _log(self, message: str) -> None:
        # A full disk must not end the follower: it sends again once there is room.
        with contextlib.suppress(OSError), self._run.open_to_append(self._run.logs / LOG_NAME) as file:
            file.write(f"{timestamp()} {message}\n".encode(errors="replace"))


class Line:
    """One tracker, and how sending to it goes."""

    def __init__(self, tracker: Tracker, log: Callable[[str], None]) -> None:
        self.tracker = tracker
        self.is_done = False
        self._log = log
        self._failure: str | None = None

    def follow(self, finish: threading.Event) -> None:
        """Send until the run's end, and the rest then."""
        wait = POLL_SECONDS
        while not finish.is_set():
            wait = (
                POLL_SECONDS if self._succeeds(self.tracker.send) else min(2 * wait, self.tracker.longest_wait_seconds)
            )
            finish.wait(wait * random.uniform(0.75, 1.0))
        for attempt in range(LAST_ATTEMPTS):
            if self._succeeds(self._send_the_rest):
                self.is_done = True
                return
            time.sleep(0.5 * (attempt + 1))

    def _send_the_rest(self) -> None:
        self.tracker.send()
        self.tracker.close()

    def _succeeds(self, send: Callable[[], None]) -> bool:
        try:
            send()
        except Exception as error:  # whatever a tracker's library raises: nothing is lost, it is tried again
            failure = self.tracker.explain(error)
            if failure != self._failure:
                self._log(f"not sent: {failure}; trying again")
            self._failure = failure
            return False
        if self._failure is not None:
            self._log("sending again")
        self._failure = None
        return True
