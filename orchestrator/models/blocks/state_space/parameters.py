"""The sizes and matrices of a state space layer, and the arithmetic of its scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import Matrix, Scan

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import StateSpaceFields

EXPANSION = 2
"""Width inside a state space layer, as a multiple of the hidden size."""
CONVOLUTION = 4
"""Tokens that the convolution looks at."""
SCAN = 7
"""FLOPs of the scan for each channel and element of its state, forward."""


def state_space_width(model: StateSpaceFields) -> int:
    """Width inside a state space layer."""
    if model.mamba_num_heads is not None:
        return model.mamba_num_heads * model.mamba_head_dim
    return EXPANSION * model.hidden_size


def state_space_heads(model: StateSpaceFields) -> int:
    """Heads of a state space layer."""
    return model.mamba_num_heads or state_space_width(model) // model.mamba_head_dim


def convolved_width(model: StateSpaceFields) -> int:
    """What passes the convolution: x, B and C."""
    return state_space_width(model) + 2 * model.mamba_num_groups * model.mamba_state_dim


def projected_width(model: StateSpaceFields) -> int:
    """Output of a state space layer's first matrix: z, x, B, C and dt."""
    return state_space_width(model) + convolved_width(model) + state_space_heads(model)


def shared_width(model: StateSpaceFields, tp: int, cp: int) -> int:
    """The same as `cp` ranks that share a sequence bring it each other, each the heads that it has all tokens of: where
    they are more than a tensor-parallel rank's groups, with B and C of a group for each rank that has heads of it.
    """
    ranks_of_group = max(tp * cp // model.mamba_num_groups, 1)
    return projected_width(model) + (ranks_of_group - 1) * 2 * model.mamba_num_groups * model.mamba_state_dim


def matrices(model: StateSpaceFields) -> tuple[Matrix, ...]:
    """Into the scan, and out of it."""
    h = model.hidden_size
    return (
        Matrix("in_proj", h, projected_width(model), "column", has_bias=False),
        Matrix("out_proj", state_space_width(model), h, "row", has_bias=False),
    )


def other_parameters(model: StateSpaceFields, tp: int) -> int:
    """Beside the matrices: a convolution with its bias, of each head its step, decay and skip, and a norm over the
    width inside, all shared out over `tp` ranks.
    """
    width, heads = state_space_width(model), state_space_heads(model)
    return (convolved_width(model) * (CONVOLUTION + 1) + 3 * heads + width) // tp


def scan(model: StateSpaceFields) -> Scan:
    """Of z, x, B, C and dt together, of x, B and C, and of its output."""
    width = state_space_width(model)
    return Scan(projected_width(model), convolved_width(model), width, SCAN * width * model.mamba_state_dim)
