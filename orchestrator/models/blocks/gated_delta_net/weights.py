"""The weights of a gated delta net in a checkpoint.

Rows of `in_proj` lie key head by key head: [q, k, v and gates of its value heads, their beta, their alpha], as those of
`conv1d` do: [q, k, v]. So tensor-parallel ranks have consecutive rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.gated_delta_net.parameters import convolved_width, matrices
from orchestrator.models.blocks.weights import Shapes, linears, norm

if TYPE_CHECKING:
    from orchestrator.models.blocks.gated_delta_net.model_fields import DeltaFields


def weights(model: DeltaFields) -> Shapes:
    """Those of one layer and the norm before it, by their names in the self-attention, with their shapes."""
    heads = (model.linear_num_value_heads,)
    return {
        **norm("in_proj.layer_norm_", model, model.hidden_size),
        **linears(matrices(model)),
        "conv1d.weight": (convolved_width(model), 1, model.linear_conv_kernel_dim),
        "A_log": heads,
        "dt_bias": heads,
        "out_norm.weight": (model.linear_value_head_dim,),
    }
