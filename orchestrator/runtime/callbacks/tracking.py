"""Starts the process that sends the metrics on, so that no step ever waits for a tracking server."""

from __future__ import annotations

import subprocess

from orchestrator.run_directory.rundir import in_command
from orchestrator.runtime.callbacks.base import Callback
from orchestrator.runtime.session import Session
from orchestrator.tracking.follower import finish_follower, start_follower

_DRAIN_SECONDS = 30.0


class Tracking(Callback):
    """Rank 0's follower, from the first step to the end."""

    def __init__(self) -> None:
        self._follower: subprocess.Popen[bytes] | None = None

    def on_start(self, session: Session) -> None:
        if session.processes.ranks.is_first and session.job.tracking.trackers:
            try:
                self._follower = start_follower(session.launch.run)
            except OSError as error:  # the run directory keeps everything: nothing of that ends a training
                later = f"orchestrator sync {in_command(session.launch.run)}"
                print(f"no metrics are sent during this start: {error}; `{later}` does", flush=True)

    def on_end(self, session: Session) -> None:
        self._finish(session, "stopped" if session.agreed.postponed else "completed")

    def on_stop(self, session: Session) -> None:
        self._finish(session, "stopped")

    def _finish(self, session: Session, cause: str) -> None:
        if self._follower is not None:
            session.launch.watchdog.rest()
            finish_follower(self._follower, _DRAIN_SECONDS, cause)
