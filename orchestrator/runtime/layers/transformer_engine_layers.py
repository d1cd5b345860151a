"""Transformer layers from Transformer Engine: fused norm+linear, fused attention."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.extensions.transformer_engine import (
    TEColumnParallelLinear,
    TEDotProductAttention,
    TENorm,
    TERowParallelLinear,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.utils import is_te_min_version

from orchestrator.kernel_selection.fused_kernels import lacks_tuned_norm
from orchestrator.models.blocks.base import LayerTools
from orchestrator.models.blocks.registry import mixer_named
from orchestrator.runtime.layers.attention.flash import FlashAttention
from orchestrator.runtime.layers.attention.padded import PaddedAttention
from orchestrator.runtime.layers.attention.padded_lengths import Lengths
from orchestrator.runtime.layers.attention.rotation import rotating_attention
from orchestrator.runtime.layers.config import LayerConfig, LayerKind, layers_of_chunk
from orchestrator.runtime.layers.normalization.branches import place_norms
from orchestrator.runtime.layers.normalization.norms import KernelNorm, Norm
from orchestrator.runtime.layers.normalization.per_head_norm import PerHeadNorm
from orchestrator.runtime.layers.normalization.projection_norm import ProjectionNorm
from orchestrator.runtime.layers.parameter_attributes import mark_split
from orchestrator.runtime.layers.torch_layers import Attention

_FIRST_WITH_SINKS = "2.8.0"
"""Version whose attention takes them."""


class AttentionWithSinks(TEDotProductAttention):
    """Transformer Engine's, whose sinks are known to be split over tensor-parallel ranks."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        mark_split(self.softmax_offset)


class AttentionInChunks(TEDotProductAttention):
    """Transformer Engine's, over the chunks of a sequence one by one: each is a sequence of its own."""

    def __init__(self, config: LayerConfig, layer_number: int, *arguments: Any, **options: Any) -> None:
        super().__init__(config, layer_number, *arguments, **options)
        self._chunk = config.chunk_of(layer_number)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *arguments: Any, **options: Any
    ) -> torch.Tensor:
        """query: [s, b, heads, d]; key, value: [s, b, groups, d]; returns [s, b, heads * d]."""
        attend = super().forward
        if self._chunk is None or key.size(0) <= self._chunk:
            whole: torch.Tensor = attend(query, key, value, *arguments, **options)
            return whole
        chunks = zip(*(torch.split(each, self._chunk) for each in (query, key, value)), strict=True)
        return torch.cat([attend(*chunk, *arguments, **options) for chunk in chunks])


def block_spec(config: LayerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """The layers of one model chunk of this rank's stage."""
    kinds = layers_of_chunk(config, vp_stage)
    made = {kind: _layer_spec(config, kind) for kind in set(kinds)}
    layers = [made[kind] for kind in kinds]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=FastestNorm)


def column_and_norm() -> tuple[Any, Any]:
    """A linear layer whose outputs tensor-parallel ranks split, and the norm."""
    return TEColumnParallelLinear, TENorm


def encoder_attention() -> ModuleSpec:
    """Attention to all tokens but padding, for the layers of one model chunk."""
    return ModuleSpec(module=PaddedAttention, params={"lengths": Lengths()})


def _layer_spec(config: LayerConfig, kind: LayerKind) -> Any:
    layer = get_gpt_layer_with_transformer_engine_spec(
        num_experts=config.num_moe_experts if kind.has_experts else None,
        moe_grouped_gemm=config.moe_grouped_gemm,
        qk_layernorm=config.qk_layernorm,
    )
    own = layer.submodules.self_attention.submodules.core_attention
    if config.attention_chunk is not None:
        own = AttentionInChunks
    core = _core_attention(config) or (own if config.softmax_type == "vanilla" else AttentionWithSinks)
    tools = LayerTools(
        TEColumnParallelLinear,
        TERowParallelLinear,
        FastestNorm,
        ProjectionNorm,
        PerHeadNorm,
        core,
        rotating_attention(config),
    )
    mixer_named(kind.mixer).layers.place(layer, config, tools)
    return place_norms(layer, config, FastestNorm, TEColumnParallelLinear)


class FastestNorm:
    """Builds megatron-core's wrapper of Transformer Engine's norm, or ours: with kernels where Transformer Engine has
    none for the width, and torch's where it would have a bias that the model has not.
    """

    def __new__(cls, config: LayerConfig, hidden_size: int, eps: float = 1e-5) -> Any:
        """`hidden_size`: of what is normalised."""
        if config.normalizes_in_kernels and lacks_tuned_norm(config.normalization, hidden_size):
            return KernelNorm(config, hidden_size, eps)
        return (TENorm if config.norm_bias else Norm)(config, hidden_size, eps)


def _core_attention(config: LayerConfig) -> type[Attention | FlashAttention] | None:
    """Where it is not Transformer Engine's, which has no soft-capping, nor a fused kernel that takes any mask;
    megatron-core hands it no slopes, and it rings no windows, and no sinks. Old versions have no sinks at all.
    """
    if config.flash_attention:
        return FlashAttention
    ringed_window = config.window_size is not None and config.context_parallel_size > 1
    lacks_sinks = config.softmax_type != "vanilla" and (
        config.context_parallel_size > 1 or not is_te_min_version(_FIRST_WITH_SINKS)
    )
    capped = config.attention_logit_softcapping is not None
    ours = config.alibi or capped or ringed_window or config.packs or config.masks_images or lacks_sinks
    return Attention if ours else None
