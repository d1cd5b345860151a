"""What a gated delta net keeps for its backward pass. Bytes of one rank and micro-batch.

It keeps what its first matrix gives and its second one takes. What is between them, little arithmetic and many tensors,
is computed again in the backward pass, which needs room for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import FP32, CoreKernels, RankShape
from orchestrator.models.blocks.gated_delta_net.parameters import CHUNK, convolved_width, projected_width, value_width

if TYPE_CHECKING:
    from orchestrator.models.blocks.gated_delta_net.model_fields import DeltaFields

_NUMBER = 8
"""Bytes of the number of a text."""
_KEYS, _VALUES = 5, 11
"""Tensors as large as the queries and as the values of all value heads, in fp32, in the backward pass."""
_CHUNKS = 10
"""Products of each token of a chunk with each other one."""
_CHANGES, _STATES = 3, 2
"""What changes the state of each chunk, and as large as these states."""


def saved(model: DeltaFields, shape: RankShape, kernels: CoreKernels) -> int:
    """Between its matrices; and where texts are packed, which of them each token is of."""
    between = shape.tokens * shape.width * (projected_width(model) + value_width(model)) // shape.tp
    return between + (_NUMBER * shape.tokens if kernels.masked else 0)


def backward(model: DeltaFields, shape: RankShape, kernels: CoreKernels) -> int:
    """The most that its backward pass takes beyond what is saved: all that is between its matrices, and its gradient.
    Counted for torch's operations; fla's kernels need less.
    """
    heads, chunk = model.linear_num_value_heads // shape.tp, min(CHUNK, shape.positions * shape.cp)
    key, value = model.linear_key_head_dim, model.linear_value_head_dim
    of_states = key * (_CHANGES * key + _STATES * value) // chunk
    of_a_head = _KEYS * key + _VALUES * value + _CHUNKS * chunk + of_states
    accesses = 4
    if kernels.masked:  # all that a token looks at is laid out for the convolution, and so is its gradient
        accesses += 2 * model.linear_conv_kernel_dim
        of_a_head += chunk
    convolved = accesses * shape.width * (convolved_width(model) // shape.tp)
    gradient = shape.width * (projected_width(model) // shape.tp)
    if shape.cp > 1:  # it is sent to the ranks that have its tokens
        gradient *= 2
    return shape.stream + shape.tokens * (heads * of_a_head * FP32 + convolved + gradient)
