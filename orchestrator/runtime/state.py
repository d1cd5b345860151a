"""How far a training is: the little that has to survive a restart beside weights, optimizer and generators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.data.samples.position import DataPosition
from orchestrator.planning.training_schedule.batch import Progress


@dataclass
class TrainState:
    """Counts since the start of the training, over all its incarnations."""

    iteration: int = 0
    """Steps done, skipped ones included."""
    consumed_samples: int = 0
    """Sequences read; the position in the data."""
    consumed_tokens: int = 0
    """Tokens of these sequences, each with the length at which it was read."""
    data: DataPosition | None = None
    """What determines the order of the samples; None if they are random or a task's examples."""
    skipped_steps: int = 0
    """Steps whose update was left out because it was not finite."""
    consecutive_bad_steps: int = 0
    """Such steps since the last good one, in this incarnation: a resumed run has all its chances again."""

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return Progress(self.iteration, self.consumed_samples, self.consumed_tokens)

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint keeps beside the weights; its marker has the tokens and the position in the data."""
        return {name: getattr(self, name) for name in ("iteration", "consumed_samples", "skipped_steps")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises KeyError when something is missing."""
        for name in self.state_dict():
            setattr(self, name, int(state[name]))


@dataclass(frozen=True)
class StepRecord:
    """What one training step did, as this rank saw it. The loss comes later, when all ranks have agreed on it."""

    iteration: int
    consumed_samples: int
    consumed_tokens: int
    samples: int
    learning_rate: float
    grad_norm: float
    applied: bool
    skipped_steps: int
    """Skipped so far, this one included."""
    skip_reason: str | None
    seconds: float
    """Wall clock of the step on this rank."""
    ended: float
    """When it ended here, in seconds since the epoch: its loss is known a step later, and is of this moment."""
    loss_scale: float | None
