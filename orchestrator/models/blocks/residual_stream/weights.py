"""The weights of norms around a layer's branches in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.weights import Shapes, norm

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def weights(model: Fields) -> Shapes:
    """Those of one layer that are in none of its branches, by their names in it, with their shapes."""
    is_behind = model.normalizes_outputs or model.transformer_block_type == "post_ln"
    names: tuple[str, ...] = ("post_self_attn_layernorm", "post_mlp_layernorm") if is_behind else ()
    if model.normalizes_inputs and not model.normalizes_each_input:
        names = (*names, "input_layernorm")
    norms = (norm(f"{name}.", model, model.hidden_size) for name in names)
    return {name: shape for each in norms for name, shape in each.items()}
