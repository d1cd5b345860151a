"""What a state space layer moves in memory beside its matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import ForwardBackward
from orchestrator.models.blocks.state_space.matrices import convolved_width, projected_width, state_space_width

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import StateSpaceFields


def moved(
    model: StateSpaceFields, projected: ForwardBackward, convolved: ForwardBackward, inner: ForwardBackward
) -> ForwardBackward:
    """Elements that kernels read and write for each token. Accesses of each element: `projected` of z, x, B, C and dt
    together, `convolved` of x, B and C, `inner` of the scan's output.
    """
    widths = (
        (projected, projected_width(model)),
        (convolved, convolved_width(model)),
        (inner, state_space_width(model)),
    )
    return ForwardBackward(
        sum(accesses.forward * each for accesses, each in widths),
        sum(accesses.backward * each for accesses, each in widths),
    )
