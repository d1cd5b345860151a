"""OLMo 2: Llama with norms behind attention and MLP instead of before them, and over all queries and all keys."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.conversion.hugging_face.families.llama import (
    ATTENTION,
    DEFAULTS,
    FIRST,
    FIXED,
    LLAMA,
    MLP,
    QKV,
    REST,
)
from orchestrator.conversion.hugging_face.families.qwen import QK_NORMS
from orchestrator.conversion.weight_mapping import DECODER, SameAs
from orchestrator.models.blocks.weights import Rule

BEFORE = (f"{ATTENTION}linear_qkv.layer_norm_weight", f"{MLP}linear_fc1.layer_norm_weight")
"""The norms before attention and MLP."""

OLMO2 = replace(
    LLAMA,
    name="OLMo 2",
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    rules=(
        *(rule for rule in (*FIRST, QKV) if rule.ours not in BEFORE),
        *QK_NORMS,
        Rule(f"{DECODER}post_self_attn_layernorm.weight", ("model.layers.{n}.post_attention_layernorm.weight",)),
        Rule(f"{DECODER}post_mlp_layernorm.weight", ("model.layers.{n}.post_feedforward_layernorm.weight",)),
        *(rule for rule in REST if rule.ours not in BEFORE),
    ),
    fixed={
        **FIXED,
        **{"transformer_block_type": "reordered_ln", "qk_layernorm": True, "qk_layernorm_scope": "projection"},
    },
    constants={"attention_bias": False},
    defaults={**DEFAULTS, "num_key_value_heads": SameAs("num_attention_heads"), "rms_norm_eps": 1e-5},
)
