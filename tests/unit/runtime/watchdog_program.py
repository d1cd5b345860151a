"""A process with a watchdog that hangs, or loses its parent: `watchdog_program.py hang|rest|orphan|beat FOLDER`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from orchestrator.rundir import RunDir
from orchestrator.runtime.watchdog import Watchdog


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
        for _ in range(1000):
            if (folder / "orphaned").exists():
                return
            time.sleep(0.01)
        return
    watchdog = watch(folder, timeout=0.5 if what == "hang" else 1.0)
    if what == "hang":
        watchdog.beat(7)
        watchdog.beat()
        a_function_that_hangs()
    for _ in range(15):
        if what == "beat":
            watchdog.beat()
        time.sleep(0.1)
    if what == "rest":
        watchdog.beat()
        watchdog.rest()
        time.sleep(1.5)
    watchdog.stop()


if __name__ == "__main__":
    main()
