"""StableLM: Llama with LayerNorm, positions that rotate a part of each head, and perhaps biases of its queries."""

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
    SIZES,
    with_bias,
)
from orchestrator.conversion.hugging_face.families.qwen import QKV_BIAS

_LAYER_NORMS = {
    f"{ATTENTION}linear_qkv.layer_norm_weight": f"{ATTENTION}linear_qkv.layer_norm_",
    f"{MLP}linear_fc1.layer_norm_weight": f"{MLP}linear_fc1.layer_norm_",
    "decoder.final_layernorm.weight": "decoder.final_layernorm.",
}

STABLELM = replace(
    LLAMA,
    name="StableLM",
    model_type="stablelm",
    architecture="StableLmForCausalLM",
    rules=tuple(
        each
        for rule in (*FIRST, QKV, replace(QKV_BIAS, only_with="add_qkv_bias"), *REST)
        for each in (
            with_bias(_LAYER_NORMS[rule.ours], rule.theirs[0].removesuffix("weight"))
            if rule.ours in _LAYER_NORMS
            else (rule,)
        )
    ),
    sizes={
        **{field: key for field, key in SIZES.items() if field != "kv_channels"},
        **{"norm_epsilon": "layer_norm_eps", "add_qkv_bias": "use_qkv_bias"},
    },
    fixed={
        **{field: value for field, value in FIXED.items() if field not in ("add_qkv_bias", "rotary_percent")},
        **{"normalization": "LayerNorm", "kv_channels": None},
    },
    constants={"use_parallel_residual": False, "qk_layernorm": False, "hidden_dropout": 0.0},
    defaults={
        **DEFAULTS,
        **{"num_key_value_heads": 32, "layer_norm_eps": 1e-5, "use_qkv_bias": False, "partial_rotary_factor": 0.25},
        **{"max_position_embeddings": 4096},
    },
)
