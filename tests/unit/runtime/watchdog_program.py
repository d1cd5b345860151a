"""A process with a watchdog that hangs, or loses its parent: `watchdog_program.py hang|rest|orphan|beat FOLDER`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.processes import watchdog as module
from orchestrator.runtime.processes.watchdog import Watchdog


def a_function_that_hangs() -> None:
    time.sleep(30)


def watch(folder: Path, timeout: float) -> Watchdog:
    def note(iteration: int | None, seconds: float) -> None:
        (folder / "hang").write_text(f"{iteration} {seconds}")

    watchdog = Watchdog(RunDir(folder), 2, timeout, note, (folder / "orphaned").touch, exit_code=72)
    watchdog.start()
    return watchdog


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "orphan":
        # The parent of the process with the watchdog ends at once.
        if os.fork():
            while not (folder / "watching").exists():
                time.sleep(0.01)
            os._exit(0)
        watch(folder, timeout=30)
        (folder / "watching").touch()
        deadline = time.monotonic() + 60
        while not (folder / "orphaned").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return
    if what == "hang":
        watchdog = watch(folder, timeout=0.5)
        watchdog.beat(7)
        watchdog.beat()
        a_function_that_hangs()
    # Time goes on only here: a machine that is busy elsewhere is no hang.
    now = 0.0
    module.time = SimpleNamespace(monotonic=lambda: now, sleep=time.sleep)
    watchdog = watch(folder, timeout=10)
    if what == "rest":
        now += 20
        time.sleep(0.6)
        watchdog.beat()
        watchdog.rest()
    for _ in range(4):
        now += 7
        time.sleep(0.3)
        if what == "beat":
            watchdog.beat()
    watchdog.stop()


if __name__ == "__main__":
    main()
