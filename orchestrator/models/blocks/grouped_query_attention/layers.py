"""Grouped-query attention in the layers that train, and with a cache where they generate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention

from orchestrator.models.blocks.base import LayerSetup, LayerTools
from orchestrator.models.blocks.grouped_query_attention.rope_scaling import attention_factor

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import GroupedQueryFields


@dataclass
class GroupedQueryConfig(TransformerConfig):
    """megatron-core's configuration, and what attention does beyond it."""

    alibi: bool = False
    """Lower scores by distance, with a slope for each head."""
    attention_logit_softcapping: float | None = None
    """Scores x become cap · tanh(x / cap)."""
    qk_layernorm_scope: Literal["head", "per_head", "projection"] = "head"
    """What norms of queries and keys are over: each head by itself, with the same weights for all or with its own, or
    all heads together."""
    has_local_rotation: bool = False
    """Layers with a window have rotary frequencies of their own."""
    no_rotation_freq: int | None = None
    """Layers whose number is a multiple of this do not rotate queries and keys. megatron-core's `no_rope_freq` asks for
    as many layers as make up whole rounds."""
    attention_chunk: int | None = None
    """Tokens of a chunk, beyond which layers that rotate queries and keys do not look."""
    normalizes_rotated: bool = False
    """Heads of rotated queries and keys are normalised, without weights."""
    query_temperature: tuple[float, int] | None = None
    """Queries that are not rotated are multiplied by a factor that grows with their position: its scale, and tokens
    between two values."""
    rotated_channels: tuple[int, float] | None = None
    """Channels of a head that are rotated, and what those of queries are multiplied by in layers with the rotary
    frequencies of the model."""

    @property
    def changes_queries_by_layer(self) -> bool:
        """Whether layers, or channels, differ in how they rotate queries and keys, or in what they do to those."""
        by_layer = self.has_local_rotation or self.no_rotation_freq is not None
        return by_layer or self.normalizes_rotated or self.rotated_channels is not None

    def rotation_of(self, layer_number: int) -> int | None:
        """Which rotary frequencies a layer has: 0 for those of the model, 1 for those of layers with a window; None for
        no rotation. Layers count from 1.
        """
        if self.no_rotation_freq is not None and layer_number % self.no_rotation_freq == 0:
            return None
        return int(self.has_local_rotation and self.window_of(layer_number) is not None)

    def chunk_of(self, layer_number: int) -> int | None:
        """Tokens of a chunk, beyond which a layer does not look; None for none. Layers count from 1."""
        return None if self.rotation_of(layer_number) is None else self.attention_chunk

    def window_of(self, layer_number: int) -> int | None:
        """Tokens that a token attends to in a layer, itself and those before it, and of an encoder as many after it;
        None for all. Layers count from 1.
        """
        windowed = is_layer_window_attention(self.window_size, self.window_attn_skip_freq, layer_number)
        return self.window_size[0] + 1 if windowed else None


def settings(model: GroupedQueryFields, setup: LayerSetup) -> dict[str, Any]:
    """Attributes of the layers' configuration."""
    temperature, of_rotated = model.attention_temperature_scale, model.rotated_query_factor
    return {
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.query_groups,
        "kv_channels": model.head_dim,
        "add_qkv_bias": model.has_qkv_bias,
        "qk_layernorm": model.qk_layernorm,
        "qk_layernorm_scope": model.qk_layernorm_scope,
        "attention_dropout": model.attention_dropout,
        "attention_output_gate": model.attention_output_gate,
        "softmax_scale": attention_factor(model.rope_scaling) ** 2 / of_rotated * model.scale_of_scores,
        "rotated_channels": None if of_rotated == 1.0 else (int(model.head_dim * model.rotary_percent), of_rotated),
        "softmax_type": model.softmax_type,
        "alibi": model.position_embedding_type == "alibi",
        "attention_logit_softcapping": model.attention_logit_softcapping,
        "window_size": model.window_size,
        "window_attn_skip_freq": model.window_attn_skip_freq,
        "has_local_rotation": model.rotary_base_local is not None,
        "no_rotation_freq": model.no_rope_freq,
        "attention_chunk": model.attention_chunk_size,
        "normalizes_rotated": model.qk_l2_norm,
        "query_temperature": None if temperature is None else (temperature, model.attention_temperature_interval),
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


def keep(layer: Any, with_cache: Callable[[Any], Any]) -> Any:
    """Let a built layer keep the keys and values of tokens."""
    attention = layer.self_attention
    attention.core_attention = with_cache(attention.core_attention)
    return attention.core_attention
