"""When checkpoints are written."""

from __future__ import annotations

import time

from orchestrator.errors import CheckpointError
from orchestrator.runtime.callbacks.base import Callback
from orchestrator.runtime.processes.exits import DiskFullError
from orchestrator.runtime.session import Session


class CheckpointSaving(Callback):
    """Every `save_interval` steps, every `save_seconds` seconds by rank 0's clock, at the end and at a stop.

    A save that fails in between leaves the training running and the earlier checkpoints as they are; the one at the
    end, or at a stop, must succeed.
    """

    def __init__(self) -> None:
        self._last_saved = time.monotonic()
        self._saved_iteration: int | None = None
        self._expected = False

    def on_start(self, session: Session) -> None:
        self._saved_iteration = session.state.iteration or None
        self._last_saved = time.monotonic()

    def on_step(self, session: Session) -> None:
        policy, iteration = session.job.checkpoint, session.state.iteration
        if not self._expected and (policy.save_interval is not None or policy.save_seconds is not None):
            self._expected = True  # after the first step, which it would delay
            session.checkpointer.expect_saves()
        due = policy.save_interval is not None and iteration % policy.save_interval == 0
        if policy.save_seconds is not None and session.processes.ranks.is_first:
            session.agreed.wants_save = time.monotonic() - self._last_saved > policy.save_seconds
        if session.finished or not (due or session.agreed.save_due):
            return
        self._save(session, wait=not policy.async_save)
        self._last_saved = time.monotonic()

    def on_end(self, session: Session) -> None:
        self._save_now(session)

    def on_stop(self, session: Session) -> None:
        self._save_now(session)

    def _save_now(self, session: Session) -> None:
        iteration = session.state.iteration
        session.progress()
        if session.checkpointer.finish() and self._saved_iteration == iteration:
            return
        if not self._save(session, wait=True):
            failure = session.checkpointer.failure
            assert failure is not None, "a save that was not committed was abandoned"
            kind = DiskFullError if failure.disk_full else CheckpointError
            raise kind(
                f"the checkpoint of iteration {iteration} could not be written: {failure.message}. "
                "Earlier checkpoints are as they were",
                code="disk_full" if failure.disk_full else "checkpoint_not_written",
            )

    def _save(self, session: Session, *, wait: bool) -> bool:
        """Save the state as it is now. Returns whether that was done, or is going on where it is not waited for."""
        session.begin_save()
        saved = session.checkpointer.in_progress and (not wait or session.checkpointer.finish())
        self._saved_iteration = session.state.iteration if saved else None
        return saved
