"""The weights of latent attention in a checkpoint, and the published models with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.latent_attention.parameters import kv_rank, matrices
from orchestrator.models.blocks.weights import Shapes, linears, norm

if TYPE_CHECKING:
    from orchestrator.models.blocks.latent_attention.model_fields import LatentFields


def weights(model: LatentFields) -> Shapes:
    """Those of one layer and the norm before it, by their names in the self-attention, with their shapes."""
    found = {**norm("linear_kv_down_proj.layer_norm_", model, model.hidden_size), **linears(matrices(model))}
    if model.qk_layernorm:
        found |= norm("kv_layernorm.", model, kv_rank(model))
        if model.q_lora_rank is not None:
            found |= norm("q_layernorm.", model, model.q_lora_rank)
    return found
