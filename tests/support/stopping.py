"""Stopping what a command starts, in this process, before the command is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.launch.processes.stop_request import request_stop
from orchestrator.run_directory.rundir import RunDir


@contextmanager
def stopped_once_launched(folder: Path, *, at_once: bool = False) -> Iterator[None]:
    """Whatever is launched meanwhile in a folder of runs is asked to stop, as soon as that is written down."""
    over = threading.Event()

    def stop() -> None:
        while not over.wait(0.01):
            with suppress(FileNotFoundError):  # a run that is made is renamed: it is looked for again
                for log in folder.rglob("events.jsonl"):
                    run = RunDir(log.parent)
                    if '"launched"' in log.read_text() and not run.stop_file.exists():
                        request_stop(run, "the test", at_once=at_once)

    with ThreadPoolExecutor(1) as beside:
        stopping = beside.submit(stop)
        try:
            yield
        finally:
            over.set()
        stopping.result()
