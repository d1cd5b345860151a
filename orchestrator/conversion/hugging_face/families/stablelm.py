"""StableLM: Llama with LayerNorm, positions that rotate a part of each head, and perhaps biases of its queries; the 12B
has attention and MLP behind one norm, and norms of each head of queries and keys.
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
    NORMS_OF_HEADS,
    QKV,
    REST,
    SIZES,
    THEIR_ATTENTION,
    norms_of_heads,
    with_bias,
)
from orchestrator.conversion.hugging_face.families.qwen import QKV_BIAS
from orchestrator.conversion.weight_mapping import DECODER
from orchestrator.models.blocks.weights import Rule

_PARALLEL, _QK_NORM = "use_parallel_residual", "qk_layernorm"

_LAYER_NORMS = {
    f"{ATTENTION}linear_qkv.layer_norm_weight": f"{ATTENTION}linear_qkv.layer_norm_",
    f"{MLP}linear_fc1.layer_norm_weight": f"{MLP}linear_fc1.layer_norm_",
    "decoder.final_layernorm.weight": "decoder.final_layernorm.",
}
_OF_HEADS = tuple(
    Rule(
        f"{ATTENTION}{part}_layernorm.weight",
        (f"{THEIR_ATTENTION}{part}_layernorm.norms.{{h}}.weight",),
        "vectors_of_heads",
        "qk_layernorm",
        of_heads=heads,
    )
    for part, heads in (("q", "num_attention_heads"), ("k", "query_groups"))
)

STABLELM = replace(
    LLAMA,
    name="StableLM",
    model_type="stablelm",
    architecture="StableLmForCausalLM",
    rules=tuple(
        each
        for rule in (*FIRST, QKV, replace(QKV_BIAS, only_with="add_qkv_bias"), *_OF_HEADS, *REST)
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
        **{
            field: value
            for field, value in FIXED.items()
            if field not in ("add_qkv_bias", "rotary_percent", *NORMS_OF_HEADS)
        },
        **{"normalization": "LayerNorm", "kv_channels": None},
    },
    constants={_PARALLEL: False, "hidden_dropout": 0.0},
    defaults={
        **DEFAULTS,
        **{"num_key_value_heads": 32, "layer_norm_eps": 1e-5, "use_qkv_bias": False, "partial_rotary_factor": 0.25},
        **{"max_position_embeddings": 4096, _PARALLEL: False, _QK_NORM: False},
    },
    derived=(norms_of_heads(_QK_NORM),),
    told_by=".post_attention_layernorm.weight",
)
STABLELM_ONE_NORM = replace(
    STABLELM,
    name="StableLM with one norm",
    rules=tuple(
        replace(rule, ours=rule.ours.replace(f"{ATTENTION}linear_qkv.layer_norm_", f"{DECODER}input_layernorm."))
        for rule in STABLELM.rules
        if not rule.ours.startswith(f"{MLP}linear_fc1.layer_norm_")
    ),
    fixed={**STABLELM.fixed, "parallel_residual": "one_norm"},
    constants={**STABLELM.constants, _PARALLEL: True},
    told_by=None,
)
