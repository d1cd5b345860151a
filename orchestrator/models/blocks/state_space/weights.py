"""The weights of a state space layer in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.models.blocks.state_space.parameters import (
    CONVOLUTION,
    convolved_width,
    matrices,
    state_space_heads,
    state_space_width,
)
from orchestrator.models.blocks.weights import Shapes, linears

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import StateSpaceFields

PROJECTED: Final = ("z", "x", "B", "C", "dt")
"""Rows of the first matrix: each kind is a tensor of its own in a checkpoint, which ranks share."""
CONVOLVED: Final = ("x", "B", "C")
"""The same of what passes the convolution."""


def weights(model: StateSpaceFields) -> Shapes:
    """Those of one layer and the RMSNorm before it, by their names in the mixer, with their shapes: first as one
    tensor what a checkpoint holds in parts, then these parts.
    """
    heads, width = state_space_heads(model), state_space_width(model)
    states = model.mamba_num_groups * model.mamba_state_dim
    rows = {"z": width, "x": width, "B": states, "C": states, "dt": heads}
    convolution: Shapes = {
        "conv1d.weight": (convolved_width(model), 1, CONVOLUTION),
        "conv1d.bias": (convolved_width(model),),
    }
    found: Shapes = {
        "in_proj.layer_norm_weight": (model.hidden_size,),
        **linears(matrices(model)),
        **convolution,
        **dict.fromkeys(("dt_bias", "A_log", "D"), (heads,)),
        "norm.weight": (width,),
    }
    found |= {f"in_proj.weight.{part}": (rows[part], model.hidden_size) for part in PROJECTED}
    for name, (_, *rest) in convolution.items():
        found |= {f"{name}.{part}": (rows[part], *rest) for part in CONVOLVED}
    return found
