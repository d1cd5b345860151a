"""Asking a launch to stop: by signals to the launcher, or through the stop file of its run."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from orchestrator.run_directory.exits.causes import Exit
from orchestrator.run_directory.rundir import RunDir, write_atomically

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@dataclass
class StopSignals:
    """Signals that reached the launcher: the first asks for a clean stop, a second SIGINT for an end at once."""

    received: list[signal.Signals] = field(default_factory=list)

    @property
    def first(self) -> str | None:
        """Name of the first one."""
        return self.received[0].name if self.received else None

    @property
    def at_once(self) -> bool:
        """Whether the person is out of patience."""
        return self.received.count(signal.SIGINT) > 1


@contextmanager
def caught_signals() -> Iterator[StopSignals]:
    """Collect stop signals instead of being ended by them."""
    caught = StopSignals()

    def note(number: int, frame: Any) -> None:
        caught.received.append(signal.Signals(number))

    with _handled(note, *_STOP_SIGNALS):
        yield caught


class Terminated(KeyboardInterrupt):
    """SIGTERM, where it ends a command as Ctrl-C does. Unlike that, it has reached this process alone."""


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """So that what Ctrl-C clears away is cleared away after SIGTERM too, which else ends a process where it stands."""

    def terminate(number: int, frame: Any) -> None:
        raise Terminated

    with _handled(terminate, signal.SIGTERM):
        yield


@contextmanager
def _handled(handler: Callable[[int, Any], None], *numbers: signal.Signals) -> Iterator[None]:
    """Have signals handled so. The main thread alone can ask for that, and it alone is ever interrupted by them."""
    is_main = threading.current_thread() is threading.main_thread()
    previous = {number: signal.signal(number, handler) for number in numbers if is_main}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def request_stop(run: RunDir, by: str, *, at_once: bool = False, to_go_on: bool = False) -> None:
    """Ask whoever runs it to stop: cleanly, or at once, without waiting for a save. `to_go_on`: as a scheduler has
    runs stop, which start again later; what a person has asked for before stays.
    """
    if to_go_on and asked_to_stay(run) is not None:
        return
    record = {"by": by, "at_once": at_once, "to_go_on": to_go_on, "time": time.time()}
    write_atomically(run.stop_file, json.dumps(record))


def stop_at_once(run: RunDir) -> str | None:
    """Who asked, through the stop file, for an end at once; None when nobody did."""
    request = run.stop_request()
    return str(request.get("by")) if request.get("at_once") is True else None


def asked_to_stay(run: RunDir) -> str | None:
    """Who asked, through the stop file, for a stop after which the run is not to start again; None when nobody did."""
    if not run.stop_file.exists():
        return None
    request = run.stop_request()
    return None if request.get("to_go_on") is True else str(request.get("by") or run.stop_file.name)


def ended_by_force(by: str, iteration: int | None) -> Exit:
    """The end of a launch whose processes were killed because a person asked for that."""
    return Exit.of("cancelled", f"ended at once, without waiting for a save, by {by}", iteration)
