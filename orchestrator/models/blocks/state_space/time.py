"""What a state space layer moves in memory beside its matrices. The figures have not been measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import ForwardBackward
from orchestrator.models.blocks.state_space.matrices import convolved_width, projected_width, state_space_width

if TYPE_CHECKING:
    from orchestrator.models.blocks.protocols import StateSpaceFields

_PROJECTED = ForwardBackward(3, 6)
"""Accesses of z, x, B, C and dt together: brought into another order, and read by the scan."""
_CONVOLVED = ForwardBackward(2, 5)
"""Of x, B and C: the convolution, which the backward pass does again."""
_INNER = ForwardBackward(5, 8)
"""Of the scan's output: written, brought back into order, and normed."""


def moved(model: StateSpaceFields) -> ForwardBackward:
    """Elements that kernels read and write for each token: convolution, scan and norm."""
    widths = (
        (_PROJECTED, projected_width(model)),
        (_CONVOLVED, convolved_width(model)),
        (_INNER, state_space_width(model)),
    )
    return ForwardBackward(
        sum(accesses.forward * each for accesses, each in widths),
        sum(accesses.backward * each for accesses, each in widths),
    )
