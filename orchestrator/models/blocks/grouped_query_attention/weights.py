"""The weights of grouped-query attention in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.grouped_query_attention.parameters import matrices, normed_widths
from orchestrator.models.blocks.weights import Shapes, linears, norm

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def weights(model: Fields) -> Shapes:
    """Those of one layer and the norm before it, by their names in the self-attention, with their shapes."""
    found = norm("linear_qkv.layer_norm_", model, model.hidden_size) if model.normalizes_each_input else {}
    found |= linears(matrices(model))
    if model.has_sinks:
        found["core_attention.softmax_offset"] = (model.num_attention_heads,)
    if model.qk_layernorm:
        for name, width in zip(("q_layernorm.", "k_layernorm."), normed_widths(model), strict=True):
            found |= {f"{name}weight": (width,)} if model.qk_layernorm_scope == "per_head" else norm(name, model, width)
    return found
