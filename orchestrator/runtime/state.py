"""How far a training is: the little that has to survive a restart beside weights, optimizer and generators."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class TrainState:
    """Counts since the start of the training, over all its incarnations."""

    iteration: int = 0
    """Steps done, skipped ones included."""
    consumed_samples: int = 0
    """Sequences read; the position in the data."""
    skipped_steps: int = 0
    """Steps whose update was left out because it was not finite."""
    consecutive_bad_steps: int = 0
    """Such steps since the last good one, in this incarnation: a resumed run has all its chances again."""

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return {name: value for name, value in asdict(self).items() if name != "consecutive_bad_steps"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises KeyError when something is missing."""
        for name in self.state_dict():
            setattr(self, name, int(state[name]))


@dataclass(frozen=True)
class StepRecord:
    """What one training step did, as this rank saw it. The loss comes later, when all ranks have agreed on it."""

    iteration: int
    consumed_samples: int
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
