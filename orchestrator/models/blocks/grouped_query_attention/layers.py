"""Grouped-query attention in the layers that train, and with a cache where they generate."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from megatron.core.transformer.spec_utils import ModuleSpec

from orchestrator.models.blocks.base import LayerTools

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def settings(model: Fields) -> dict[str, Any]:
    """Attributes of the layers' configuration beside megatron-core's own."""
    scale = model.attention_temperature_scale
    return {
        "qk_layernorm_scope": model.qk_layernorm_scope,
        "normalizes_rotated": model.qk_l2_norm,
        "query_temperature": None if scale is None else (scale, model.attention_temperature_interval),
        "attention_output_gate": model.attention_output_gate,
    }


def place(layer: Any, config: Any, tools: LayerTools) -> None:
    """Let a layer attend so. `layer`: megatron-core's specification, which has its SelfAttention already."""
    attention = layer.submodules.self_attention
    if config.rotates_projection or config.changes_queries_by_layer:
        attention.module = tools.rotated_attention
    attention.submodules.core_attention = tools.core
    if config.qk_layernorm and config.qk_layernorm_scope == "head":
        attention.submodules.q_layernorm = attention.submodules.k_layernorm = tools.norm
    elif config.qk_layernorm:
        norm = tools.per_head_norm if config.qk_layernorm_scope == "per_head" else tools.projection_norm
        heads = {"q_layernorm": config.num_attention_heads, "k_layernorm": config.num_query_groups}
        for name, count in heads.items():
            setattr(attention.submodules, name, ModuleSpec(norm, {"heads": count}))


def keep(attention: Any, with_cache: Callable[[Any], Any]) -> Any:
    """Let a built self-attention keep what later tokens attend to; what is to be handed the cache. `with_cache`: from
    a core of attention one that keeps the keys and values that it is given.
    """
    attention.core_attention = with_cache(attention.core_attention)
    return attention.core_attention
