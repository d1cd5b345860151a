"""Transformer layers from Transformer Engine: fused norm+linear, fused attention."""

from __future__ import annotations

from megatron.core.extensions.transformer_engine import TENorm
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.layers.torch_layers import Attention


def block_spec(config: LayerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """The layers of one model chunk of this rank's stage."""
    layer = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm)
    if _needs_our_attention(config):
        layer.submodules.self_attention.submodules.core_attention = Attention
    count = get_num_layers_to_build(config, vp_stage=vp_stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * count, layer_norm=TENorm)


def _needs_our_attention(config: LayerConfig) -> bool:
    """Transformer Engine has no soft-capping; megatron-core hands it no slopes, and it rings no windows."""
    ringed_window = config.window_size is not None and config.context_parallel_size > 1
    return config.alibi or config.attention_logit_softcapping is not None or ringed_window
