"""OLMo 2 and 3: Llama with norms behind attention and MLP instead of before them, and over all queries and all keys.
OLMo 3 has windows in most layers, and YaRN in the others alone.
"""

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

_LOCAL_BASE = 500000
"""What `rope_theta` of config.json says is the base of layers without a window; that of the others is this one."""
_WINDOWS = ("sliding_window", "window_attn_skip_freq")

OLMO3 = replace(
    OLMO2,
    name="OLMo 3",
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    sizes={**OLMO2.sizes, "sliding_window": "sliding_window"},
    fixed={
        **{field: value for field, value in OLMO2.fixed.items() if field not in _WINDOWS},
        "rotary_base_local": _LOCAL_BASE,
    },
    constants={**OLMO2.constants, "rope_local_base_freq": float(_LOCAL_BASE)},  # which transformers does not read
    defaults={**OLMO2.defaults, "sliding_window": 4096, "rope_theta": _LOCAL_BASE},
    global_interval=4,
    local_base=_LOCAL_BASE,
)
