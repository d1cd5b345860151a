"""Layers whose attention and MLP have the same input, x + attention(norm(x)) + MLP(norm(x)) (Wang and Komatsuzaki 2021,
GPT-J; Black et al. 2022, GPT-NeoX-20B, section 2.1), through a norm each or through one for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch.nn import functional

from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.layers.normalization.bias_dropout_add import Branch

_KEYS = {"shared_norm.": "input_layernorm."}
"""What the norm before both branches is called in checkpoints."""


def place_parallel(layer: Any, config: LayerConfig, norm: Callable[..., torch.nn.Module]) -> Any:
    """megatron-core's specification of a layer, as one of these. Where one norm is before both branches, it has none
    before either any more.
    """
    parts, shares = layer.submodules, config.parallel_residual == "one_norm"
    layer.module = ParallelLayer
    layer.params = {**(layer.params or {}), "shared_norm": norm if shares else None}
    parts.self_attn_bda = parts.mlp_bda = give_branch
    if shares:
        parts.sharded_state_dict_keys_map = {**parts.sharded_state_dict_keys_map, **_KEYS}
    return layer


def give_branch(training: bool, fused: bool) -> Callable[[Branch, torch.Tensor, float], torch.Tensor]:
    """In place of megatron-core's `get_bias_dropout_add`: a function that adds to no residual stream. What it gives is
    [s, b, h], s over TP under SP.
    """

    def give(branch: Branch, residual: torch.Tensor, dropout: float) -> torch.Tensor:
        output, bias = branch
        return functional.dropout(output if bias is None else output + bias, dropout, training)

    return give


class ParallelLayer(TransformerLayer):
    """megatron-core's layer, whose attention and MLP give their branches alone."""

    def __init__(
        self,
        config: LayerConfig,
        *arguments: Any,
        shared_norm: Callable[..., torch.nn.Module] | None,
        **options: Any,
    ) -> None:
        super().__init__(config, *arguments, **options)
        self.shared_norm: torch.nn.Module | None = None
        if shared_norm is not None:
            self.shared_norm = shared_norm(config=config, hidden_size=config.hidden_size, eps=config.layernorm_epsilon)

    def forward(
        self, hidden_states: torch.Tensor, *arguments: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states: [s, b, h], s over TP under SP, as is what is returned, with megatron-core's context behind."""
        options.pop("dynamic_inference_decode_only", None)
        normed = hidden_states if self.shared_norm is None else self.shared_norm(hidden_states)
        attended, context = self._forward_attention(normed, *arguments, **options)
        computed = self._forward_mlp(normed, options.get("inference_context"), padding_mask=options.get("padding_mask"))
        return hidden_states + attended + computed, context
