"""Its modules in the layers that train."""

from __future__ import annotations

from typing import Any

from orchestrator.models.blocks.grouped_query_attention import layers as grouped_query
from orchestrator.models.blocks.grouped_query_attention.layers import keep

__all__ = ["keep", "place", "settings"]


def settings(model: Any, setup: Any) -> dict[str, Any]:
    return {"attention_scale": model.attention_options.get("scale", 1.0)}


def place(layer: Any, config: Any, tools: Any) -> None:
    grouped_query.place(layer, config, tools)
    attention = layer.submodules.self_attention.submodules
    core = attention.core_attention

    class Scaled(core):  # type: ignore[misc,valid-type]
        def forward(self, *inputs: Any, **named: Any) -> Any:
            return self.config.attention_scale * super().forward(*inputs, **named)

    attention.core_attention = Scaled
