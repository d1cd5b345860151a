"""What asks a training to stop: a signal (SLURM's before its time limit, Ctrl-C), the stop file, or a step."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from orchestrator.run_directory.rundir import STOP_AT_VARIABLE, RunDir, write_atomically


class StopRequest:
    """A request to stop cleanly: the stop file of the run directory, a signal to this process, or a step after which
    who started the training wants it to stop.
    """

    def __init__(self, run: RunDir, watches_file: bool) -> None:
        self._run, self._watches_file = run, watches_file
        self.by: str | None = None
        at = os.environ.get(STOP_AT_VARIABLE, "")
        self._at = int(at) if at.isdecimal() else None

    def catch_signals(self) -> None:
        """Note SIGTERM, SIGINT and SIGUSR1; nothing else is done inside a handler."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self.by = signal.Signals(number).name

    def is_set(self) -> bool:
        """Whether this rank has been asked to stop."""
        if self.by is None and self._watches_file and self._run.stop_file.exists():
            self.by = str(self._run.stop_request().get("by") or "stop file")  # a file of a person's own says nothing
        return self.by is not None

    def is_due(self, iteration: int) -> bool:
        """Whether the training stops after this step because its start said so: on all ranks alike."""
        return self._at is not None and iteration >= self._at

    def leave_word(self) -> None:
        """Say in the stop file that the run is not to be started again by itself, as where a person has stopped it."""
        self.by = f"the limit of this start, step {self._at}"
        if self._watches_file:
            record = {"by": self.by, "at_once": False, "to_go_on": False, "time": time.time()}
            write_atomically(self._run.stop_file, json.dumps(record))
