"""The protocol of a training step: from a data set's samples to the parts of the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Batch = dict[str, torch.Tensor]
"""The fields of one micro-batch on the device, [b, s] each unless a step says otherwise."""


@dataclass(frozen=True)
class Part:
    """One part of the loss on one micro-batch."""

    total: torch.Tensor
    """Sum over what counts, a scalar."""
    count: torch.Tensor
    """How many count, a scalar."""


class TrainStep(Protocol):
    """What a family, or a user, decides about a micro-batch. One instance serves all chunks of a rank.

    A step that has `metrics`, names of what `loss` gives beside the loss's parts, has their means reported too. One
    that has `on_host`, names of fields, finds these in the host's memory: reading them does not wait for the device.
    """

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the loss's parts, in the order in which they are reported."""
        ...

    def get_batch(self, samples: Batch) -> Batch:
        """What `forward` and `loss` need, from the data set's fields; they are collated and on the device."""
        ...

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """Run one model chunk. What the last stage's returns goes to `loss`, what others return to the next stage."""
        ...

    def loss(self, output: torch.Tensor, batch: Batch) -> Mapping[str, Part]:
        """Every part of the loss, on the last stage. What is minimised is the sum of the parts' means."""
        ...


def fields_on_host(step: TrainStep) -> tuple[str, ...]:
    """Names of fields that a step finds in the host's memory; most have none."""
    return tuple(getattr(step, "on_host", ()))


def metrics_of(step: TrainStep) -> tuple[str, ...]:
    """Names of what a step measures beside the loss; most measure nothing."""
    return tuple(getattr(step, "metrics", ()))
