"""What a state space layer keeps for its backward pass. Bytes of one rank and micro-batch.

In mamba-ssm's fused kernel it keeps the output of its first matrix and the scan's output before the gate; outside it
the gated output for the norm, and the normed one for the second matrix. It computes the convolution and the states of
each piece of the sequence again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import FP32, CoreKernels, RankShape
from orchestrator.models.blocks.state_space.parameters import convolved_width, projected_width, state_space_width

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import StateSpaceFields

PIECE = 128
"""Tokens between states that the scan writes down."""


def saved(model: StateSpaceFields, shape: RankShape, kernels: CoreKernels) -> int:
    """Between its matrices. Batches of one are already laid out as the kernel wants them; others are copied, which it
    keeps instead.
    """
    row = shape.tokens * shape.width // shape.tp
    return row * projected_width(model) + 3 * row * state_space_width(model) + shape.tokens * FP32


def backward(model: StateSpaceFields, shape: RankShape, kernels: CoreKernels) -> int:
    """The most that its backward pass takes beyond what is saved."""
    width, row = state_space_width(model), shape.tokens * shape.width // shape.tp
    states = -(-shape.tokens // PIECE) * width // shape.tp * model.mamba_state_dim * FP32
    # States and their gradients in fp32 and in the dtype; gradients on both sides of the convolution and of the gate.
    inside = row * projected_width(model) + 2 * row * convolved_width(model) + 2 * row * width + 3 * states
    weight = projected_width(model) * shape.hidden * shape.width // shape.tp
    return shape.stream + inside + weight + (shape.whole_stream if shape.sequence_parallel else 0)
