"""Says once how long it took to the end of the first step of this start, and what took it."""

from __future__ import annotations

import time

from orchestrator.run_directory.events.types import FirstStep as FirstStepDone
from orchestrator.run_directory.events.types import Launched
from orchestrator.runtime.callbacks.base import Callback
from orchestrator.runtime.session import Session


class FirstStep(Callback):
    """Rank 0's event `first_step`. Comes after the callbacks that have something to do before the first step."""

    def __init__(self) -> None:
        self._is_over = False

    def on_start(self, session: Session) -> None:
        session.launch.clock.ends("before_steps")

    def on_step(self, session: Session) -> None:
        if self._is_over or not session.processes.ranks.is_first:
            return
        self._is_over = True
        session.launch.clock.ends("step")
        seconds = session.launch.clock.seconds
        if (launched := _launched(session)) is not None:
            began = time.time() - sum(seconds.values())
            seconds = {"launch": max(0.0, began - launched), **seconds}
        rounded = {part: round(value, 3) for part, value in seconds.items()}
        session.event(FirstStepDone(launch_id=session.launch.id, iteration=session.state.iteration, seconds=rounded))


def _launched(session: Session) -> float | None:
    """When this start was launched, in seconds since the epoch; None where nobody wrote it down."""
    launched = session.launch.run.events().of_launch(session.launch.id).last(Launched)
    return None if launched is None else launched.time
