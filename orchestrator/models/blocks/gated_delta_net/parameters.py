"""The sizes and matrices of a gated delta net, and the arithmetic of its states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import ForwardBackward, Matrix, Scan

if TYPE_CHECKING:
    from orchestrator.models.blocks.gated_delta_net.model_fields import DeltaFields

FORMULA = (
    "in a layer with linear attention h*(q+2*k) + q*h is h*(2*u + 2*v + 2*n) + v*h, and in place of scores are "
    "3*(8*v*d + 2*w*(2*u + v)); u key width, v value width, n value heads, d width of a key, "
    "w tokens of the convolution"
)
CHUNK = 64
"""Tokens between states that the delta rule writes down."""
_STATE = 8
"""FLOPs of the delta rule for each element of a head's state, forward, as Megatron-LM counts them: what the state gives
for the key, what is written to it, and what it gives for the query."""


def key_width(model: DeltaFields) -> int:
    """Of all queries, and of all keys."""
    return model.linear_num_key_heads * model.linear_key_head_dim


def value_width(model: DeltaFields) -> int:
    """Of all values, and of their gates."""
    return model.linear_num_value_heads * model.linear_value_head_dim


def convolved_width(model: DeltaFields) -> int:
    """What passes the convolution: queries, keys and values."""
    return 2 * key_width(model) + value_width(model)


def projected_width(model: DeltaFields) -> int:
    """Output of the first matrix: queries, keys, values, their gates, and of each head how much it writes and keeps."""
    return convolved_width(model) + value_width(model) + 2 * model.linear_num_value_heads


def matrices(model: DeltaFields) -> tuple[Matrix, ...]:
    """To the heads, and behind them."""
    h = model.hidden_size
    return (
        Matrix("in_proj", h, projected_width(model), "column", has_bias=False),
        Matrix("out_proj", value_width(model), h, "row", has_bias=False),
    )


def other_parameters(model: DeltaFields, tp: int) -> int:
    """Beside the matrices: the convolution, and of each head its step and decay, shared out over `tp` ranks; and the
    norm of a head's output, which every rank has whole.
    """
    shared = convolved_width(model) * model.linear_conv_kernel_dim + 2 * model.linear_num_value_heads
    return shared // tp + model.linear_value_head_dim


def scan(model: DeltaFields) -> Scan:
    """Of what is projected, what is convolved, and its output."""
    states = value_width(model) * model.linear_key_head_dim
    convolution = 2 * model.linear_conv_kernel_dim * convolved_width(model)
    widths = projected_width(model), convolved_width(model), value_width(model)
    return Scan(*widths, _STATE * states + convolution, _chunked(model))


def _chunked(model: DeltaFields) -> ForwardBackward:
    """What torch's operations read and write for the delta rule (`delta_rule.py`), its products too. The backward pass
    does the forward pass again. fla's kernels, which not every Triton compiles right, need less.
    """
    heads, key, value = model.linear_num_value_heads, model.linear_key_head_dim, model.linear_value_head_dim
    forward = 25 * key + 20 * value + 22 * CHUNK + 4 * key * (key + 2 * value) // CHUNK
    gradients = 73 * key + 31 * value + 51 * CHUNK + key * (9 * key + 16 * value) // CHUNK
    return ForwardBackward(heads * forward, heads * (forward + gradients))
