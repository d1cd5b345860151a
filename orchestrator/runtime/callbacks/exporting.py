"""Checkpoints as other tools read them, written by a process beside the training."""

from __future__ import annotations

from orchestrator.runtime.callbacks.base import Callback
from orchestrator.runtime.checkpointing.exports import Exports
from orchestrator.runtime.session import Session

_WAIT_SECONDS = 0.5


class Exporting(Callback):
    """Has rank 0 export the checkpoints that `checkpoint.export` names, after they were committed.

    No step waits for it. A training that is complete ends when its last checkpoint is exported too; one that is asked
    to stop ends at once, stopped even where every step is done, and its next start takes up what was not done.
    """

    def __init__(self) -> None:
        self._exports: Exports | None = None

    def on_start(self, session: Session) -> None:
        policy = session.job.checkpoint.export
        if policy is not None and session.processes.ranks.is_first:
            self._exports = Exports(session.launch.run, policy, session.launch.lease, session.launch.records)
            self._exports.begin(session.state.iteration)
            session.checkpointer.exports = self._exports

    def on_step(self, session: Session) -> None:
        if self._exports is not None:
            self._exports.poll()

    def on_end(self, session: Session) -> None:
        if session.job.checkpoint.export is None:
            return
        # All ranks wait together, so that each can say that it is alive.
        while session.processes.control.any(self._busy(session)):
            session.progress()
        session.agreed.postponed = session.processes.control.any(self._exports is not None and self._exports.stop())
        if session.processes.ranks.is_first:
            session.checkpointer.thin_out(session.state.iteration)

    def on_stop(self, session: Session) -> None:
        if self._exports is not None:
            self._exports.stop()

    def _busy(self, session: Session) -> bool:
        """Wait a little for an export that is under way; whether there is one, and nobody asks for the end."""
        return self._exports is not None and not session.launch.stop.is_set() and self._exports.poll(_WAIT_SECONDS)
