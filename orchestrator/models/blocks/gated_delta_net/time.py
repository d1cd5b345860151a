"""What a gated delta net moves in memory, beside its matrices and its scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import CoreWork, ForwardBackward
from orchestrator.models.blocks.gated_delta_net.parameters import convolved_width, projected_width, value_width

if TYPE_CHECKING:
    from orchestrator.models.blocks.gated_delta_net.model_fields import DeltaFields

_LAUNCHES = ForwardBackward(110, 270)
"""Kernels that the host starts more than for an attention: of the convolution, the norms and the delta rule, counted
for 64 chunks.
"""


def moved(model: DeltaFields, work: CoreWork) -> ForwardBackward:
    """Elements that kernels read and write once more: the backward pass computes again what is between the matrices."""
    again = 3 * projected_width(model) + 2 * convolved_width(model) + 5 * value_width(model)
    return ForwardBackward(0, work.tokens * again / work.tp)


def exchanged(model: DeltaFields) -> int:
    """No rank needs what another has of its heads."""
    return 0


def redistributed(model: DeltaFields, tp: int, cp: int) -> int:
    """Ranks that share a sequence share out its heads between the matrices: what the first one gives goes to the rank
    that has its head, and comes back as the input of the second one.
    """
    return projected_width(model) + value_width(model)


def gathered(model: DeltaFields, tp: int) -> int:
    """Each rank has whole heads."""
    return 0


def more_launches(model: DeltaFields) -> ForwardBackward:
    """Kernels that the host starts more than for an attention."""
    return _LAUNCHES
