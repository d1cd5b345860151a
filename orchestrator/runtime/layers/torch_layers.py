"""Transformer layers from megatron-core's own linears, torch's norms and torch's scaled dot product attention."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch.nn import functional

from orchestrator.models.blocks.base import LayerTools
from orchestrator.models.blocks.registry import mixer_named
from orchestrator.runtime.layers.attention.core import CoreAttention
from orchestrator.runtime.layers.attention.flash import FlashAttention, FlashAttentionApart
from orchestrator.runtime.layers.attention.masked import MaskedAttention, WindowMasks
from orchestrator.runtime.layers.attention.rotation import rotating_attention
from orchestrator.runtime.layers.attention.scaled_dot_product import scaled_dot_product_attention
from orchestrator.runtime.layers.attention.scores import (
    alibi_slopes,
    attention_by_scores,
    causal_mask,
    for_every_head,
    plain_causal_mask,
)
from orchestrator.runtime.layers.config import LayerConfig, LayerKind, layers_of_chunk
from orchestrator.runtime.layers.normalization.branches import place_norms
from orchestrator.runtime.layers.normalization.norms import Norm
from orchestrator.runtime.layers.normalization.per_head_norm import PerHeadNorm
from orchestrator.runtime.layers.normalization.projection_norm import ProjectionNorm
from orchestrator.runtime.processes import context_parallel
from orchestrator.runtime.processes.process_groups import get_context_parallel_group, get_tensor_model_parallel_rank


class Attention(CoreAttention):
    """Causal attention through torch's scaled_dot_product_attention; grouped queries are not expanded."""

    def __init__(self, config: LayerConfig, layer_number: int, *arguments: Any, **options: Any) -> None:
        super().__init__(config, layer_number, *arguments, **options)
        self.window = config.window_of(layer_number)
        self.chunk = config.chunk_of(layer_number)
        self.cap = config.attention_logit_softcapping
        self.by_scores = self.cap is not None or self.softmax_offset is not None
        self.masked = config.packs or config.masks_images
        self.slopes = alibi_slopes(config.num_attention_heads) if config.alibi else None

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: Any = None,
        **unused: Any,
    ) -> torch.Tensor:
        """Attend causally. query: [sq, b, heads, d]; key: [sk, b, groups, d]; value: [sk, b, groups, v], where v ≤ d;
        returns [sq, b, heads * v].

        With a key/value cache sq < sk, and the queries are the last sq positions. Under context parallelism all three
        are this rank's part of the sequence. `attention_mask` is a `packed_mask`, where conversations are packed, or
        `image_masks`.
        """
        group = get_context_parallel_group()
        if group is not None:
            return context_parallel.attend(self._attend, query, key, value, group)
        return self._attend(query, key, value, self._own_mask(attention_mask))

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attention of the last sq of sk positions, with a mask of their own in place of the usual one. Of all of
        several chunks: each is a sequence of its own.
        """
        if self.chunk is not None and key.size(0) > self.chunk:
            chunks = zip(*(torch.split(each, self.chunk) for each in (query, key, value)), strict=True)
            return torch.cat([self._attend(*chunk) for chunk in chunks])
        if self.window is not None:  # what no query sees is left out: a single query then needs no mask
            unseen = max(key.size(0) - query.size(0) - self.window + 1, 0)
            key, value = key[unseen:], value[unseen:]
        sq, width = query.size(0), value.size(-1)
        if width < key.size(-1):  # fused kernels have one width
            value = functional.pad(value, (0, key.size(-1) - width))
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        if mask is None:
            mask = self._mask(query, key)
        elif not self.by_scores:  # on a GPU no fused kernel takes a mask of any form and grouped queries
            k, v = for_every_head(k, q.size(1)), for_every_head(v, q.size(1))
        with self.dropping() as dropout:
            if self.by_scores:
                sinks = None if self.softmax_offset is None else self.softmax_offset[:, None, None]
                out = attention_by_scores(q, k, v, mask, self.scale, self.cap, sinks, dropout)
            else:
                out = scaled_dot_product_attention(
                    q,
                    k,
                    v,
                    attn_mask=mask,
                    dropout_p=dropout,
                    is_causal=mask is None and sq > 1,
                    scale=self.scale,
                    enable_gqa=k.size(1) != q.size(1),
                )
        return out[..., :width].permute(2, 0, 1, 3).reshape(sq, query.size(1), -1)

    def _own_mask(self, given: torch.Tensor | None) -> torch.Tensor | None:
        """The mask [b, 1, s, s] of a micro-batch for this layer; None where the layers make their own."""
        if not self.masked or given is None or given.dim() == 4:
            return given if self.masked else None
        return given[-1 if self.window is not None else 0]

    def _mask(self, query: torch.Tensor, key: torch.Tensor) -> Any:
        """What restricts or lowers scores; None where plain causal attention, or no mask at all, does."""
        sq, sk, heads = query.size(0), key.size(0), query.size(2)
        window = self.window if self.window is not None and self.window < sk else None
        if self.slopes is not None:
            first = get_tensor_model_parallel_rank() * heads
            return causal_mask(sq, sk, window, self.slopes[first : first + heads], query.dtype, query.device)
        if self.by_scores or (window is not None and sq > 1):
            return causal_mask(sq, sk, window, None, torch.bool, query.device)
        return plain_causal_mask(sq, sk, query.device) if 1 < sq < sk else None


def block_spec(config: LayerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """The layers of one model chunk of this rank's stage."""
    kinds = layers_of_chunk(config, vp_stage)
    made = {kind: _layer_spec(config, kind) for kind in set(kinds)}
    layers = [made[kind] for kind in kinds]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=Norm)


def column_and_norm() -> tuple[Any, Any]:
    """A linear layer whose outputs tensor-parallel ranks split, and the norm."""
    return ColumnParallelLinear, Norm


def encoder_attention() -> ModuleSpec:
    """Attention to all tokens but padding, or to those in a window, for the layers of one model chunk."""
    return ModuleSpec(module=MaskedAttention, params={"masks": WindowMasks()})


def _layer_spec(config: LayerConfig, kind: LayerKind) -> Any:
    layer = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if kind.has_experts else None,
        qk_layernorm=config.qk_layernorm,
        normalization=config.normalization,
    )
    layer.submodules.input_layernorm = Norm
    layer.submodules.pre_mlp_layernorm = Norm
    if kind.has_experts:
        # The norm before experts is a module of its own with Transformer Engine too, and is called the same here.
        del layer.submodules.sharded_state_dict_keys_map["pre_mlp_layernorm."]
    tools = LayerTools(
        ColumnParallelLinear,
        RowParallelLinear,
        Norm,
        ProjectionNorm,
        PerHeadNorm,
        _core_attention(config),
        rotating_attention(config),
    )
    mixer_named(kind.mixer).layers.place(layer, config, tools)
    return place_norms(layer, config, Norm, ColumnParallelLinear)


def _core_attention(config: LayerConfig) -> type[Attention | FlashAttention]:
    if not config.flash_attention:
        return Attention
    return FlashAttention if config.rotates_projection else FlashAttentionApart
