"""The moments of a training at which something can be done."""

from __future__ import annotations

from orchestrator.runtime.processes.rank_agreement import Losses
from orchestrator.runtime.session import Session
from orchestrator.runtime.state import StepRecord


class Callback:
    """Does nothing at every moment; a callback overrides those that it cares for. All methods run on every rank."""

    def on_start(self, session: Session) -> None:
        """Before the first step of this incarnation."""

    def on_step(self, session: Session) -> None:
        """After each step; `session.state` counts it."""

    def on_loss(self, session: Session, record: StepRecord, losses: Losses) -> None:
        """When the loss of a step has been agreed on: one step later, but always before a checkpoint of that step."""

    def on_end(self, session: Session) -> None:
        """After the last step, when the training is complete."""

    def on_stop(self, session: Session) -> None:
        """After the last step before a requested stop."""

    def on_error(self, session: Session) -> None:
        """After an exception on this rank, which ends the training. The other ranks may hang: none is waited for."""
