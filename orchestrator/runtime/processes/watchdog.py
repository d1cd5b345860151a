"""Notices a step that takes too long, and leaves every thread's Python stack behind."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable

from orchestrator.run_directory.rundir import RunDir

_POLL_SECONDS = 0.25
_GRACE_SECONDS = 3.0


class Watchdog:
    """A thread that ends this process when `beat`, once called, is not called again for `timeout` seconds.

    What comes before the first step (building indices, reading a checkpoint) may take its time.
    It ends the process at once (no clean-up can be expected of a process that hangs), after writing the stacks to
    stacks/rank-NNNNN.txt and calling `on_hang(iteration, seconds)`. A parent that is gone (torchrun was killed) is
    only noted, through `on_orphan`, so that the loop can save and stop; if it does not within the timeout, the hang
    rule applies.
    """

    def __init__(
        self,
        run: RunDir,
        rank: int,
        timeout: float,
        on_hang: Callable[[int | None, float], None],
        on_orphan: Callable[[], None],
        exit_code: int,
    ) -> None:
        self._path = run.stacks / f"rank-{rank:05d}.txt"
        self._timeout, self._on_hang, self._on_orphan, self._exit_code = timeout, on_hang, on_orphan, exit_code
        self._parent = os.getppid()
        self._last_beat: float | None = None
        self._iteration: int | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def beat(self, iteration: int | None = None) -> None:
        """Say that progress is made, in this iteration (None: as before).

        Called once per step, micro-evaluation and checkpoint phase.
        """
        self._iteration = self._iteration if iteration is None else iteration
        self._last_beat = time.monotonic()

    def rest(self) -> None:
        """Say that no progress is due until the next beat."""
        self._last_beat = None

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        orphaned = False
        while not self._stopped.wait(_POLL_SECONDS):
            if not orphaned and os.getppid() != self._parent:
                orphaned = True
                self._on_orphan()
            last_beat = self._last_beat
            if last_beat is not None and (silent := time.monotonic() - last_beat) > self._timeout:
                self._end(silent)

    def _end(self, silent: float) -> None:
        try:
            self._path.parent.mkdir(exist_ok=True)
            with open(self._path, "w") as file:
                file.write(f"no progress for {silent:.1f} s\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
            self._on_hang(self._iteration, silent)
            # The others hang too, and would lose their stacks if this process broke their connections first.
            time.sleep(_GRACE_SECONDS)
        finally:
            sys.stderr.flush()
            os._exit(self._exit_code)
