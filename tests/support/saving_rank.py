"""One rank of a training that measures what saves cost it: `saving.py` starts it.

Its argument is a run directory. Once the memory for it has been taken it saves after each few quiet steps, trains on
until the checkpoint is committed, and then removes it: only the last one stays, which the training ends with.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time

import torch

from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.runtime.__main__ import main as train_as_rank
from orchestrator.runtime.callbacks.base import Callback
from orchestrator.runtime.session import Session

SAVES = int(os.environ.get("SAVES", "2"))
QUIET = int(os.environ.get("QUIET_STEPS", "6"))
"""Steps before each save, of which the first may still wait for what the save before left behind."""


class Saves(Callback):
    """Saves, and notes when each step ended and what happened after which."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._ended: list[float] = []
        self._begun: list[int] = []
        self._committed: list[int] = []
        self._since = 0
        self._ready = 0
        """The step after which all ranks had the memory that saves are copied to."""

    def on_step(self, session: Session) -> None:
        self._ended.append(time.perf_counter())
        step = len(self._ended)
        checkpointer = session.checkpointer
        if step == 1:
            checkpointer.expect_saves()
        if not self._ready:
            if not session.processes.control.any(_takes_memory()):
                self._ready = self._since = step
            return
        if checkpointer.in_progress:
            return
        if len(self._begun) > len(self._committed):
            self._committed.append(step)
            self._since = step
            assert checkpointer.failure is None, checkpointer.failure
            if len(self._committed) == SAVES:
                session.agreed.stopping = True
                return
            if session.processes.ranks.is_first:
                shutil.rmtree(self._run.checkpoint(self._begun[-1]))
        elif step == self._since + QUIET:
            self._begun.append(session.state.iteration)
            session.begin_save()
            assert checkpointer.in_progress, checkpointer.failure

    def on_stop(self, session: Session) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found = {"ended": self._ended, "ready": self._ready, "begun": self._begun, "committed": self._committed}
        write_atomically(self._run.path / f"saves-{session.processes.ranks.rank}.json", json.dumps(found))


def _takes_memory() -> bool:
    return any(thread.name == "checkpoint-memory" for thread in threading.enumerate())


def main() -> int:
    """Train as one rank."""
    return train_as_rank(lambda run: [Saves(run)])
