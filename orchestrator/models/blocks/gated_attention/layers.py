"""The layers that train and generate with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.transformer.attention import SelfAttention

from orchestrator.models.blocks.attention import layers as plain
from orchestrator.models.blocks.attention.layers import keep, settings
from orchestrator.models.blocks.base import LayerTools

__all__ = ["GatedAttention", "keep", "place", "settings"]


class GatedAttention(SelfAttention):
    """megatron-core's, with a gate between the heads and the matrix behind them."""

    def __init__(
        self, config: Any, submodules: Any, layer_number: int, *, column: Callable[..., Any], **options: Any
    ) -> None:
        super().__init__(config, submodules, layer_number, **options)
        self.linear_gate = column(
            config.hidden_size,
            self.query_projection_size,
            config=config,
            init_method=config.init_method,
            gather_output=False,
            bias=False,
            skip_bias_add=False,
            is_expert=False,
        )
        self.linear_proj.register_forward_pre_hook(self._gated)

    def forward(
        self, hidden_states: torch.Tensor, *arguments: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states: [s, b, h], normed."""
        projected, _ = self.linear_gate(hidden_states)
        self._gate = torch.sigmoid(projected)
        found: tuple[torch.Tensor, torch.Tensor | None] = super().forward(hidden_states, *arguments, **options)
        del self._gate
        return found

    def _gated(self, module: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        heads, *others = arguments
        return heads * self._gate, *others


def place(layer: Any, config: Any, tools: LayerTools) -> None:
    """The gate takes the normed input too: the norm stands before both matrices, and keeps its name in checkpoints."""
    plain.place(layer, config, tools)
    parts = layer.submodules
    parts.self_attention.module = GatedAttention
    parts.self_attention.params = {**parts.self_attention.params, "column": tools.column}
    parts.self_attention.submodules.linear_qkv = tools.column
    parts.input_layernorm = tools.norm
    names = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
    parts.sharded_state_dict_keys_map = {**parts.sharded_state_dict_keys_map, **names}
