"""Transformer layers from Transformer Engine: fused norm+linear, fused attention."""

from __future__ import annotations

from megatron.core.extensions.transformer_engine import TENorm
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig


def block_spec(config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """The layers of one model chunk of this rank's stage."""
    layer = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm)
    count = get_num_layers_to_build(config, vp_stage=vp_stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * count, layer_norm=TENorm)
