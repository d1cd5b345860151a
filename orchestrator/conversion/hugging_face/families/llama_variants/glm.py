"""GLM-4: rotary positions of neighbouring channels of half of each head; that of 0414 has norms behind branches too."""

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
)
from orchestrator.conversion.hugging_face.families.phi import JOINED_MLP
from orchestrator.conversion.hugging_face.families.qwen import QKV_BIAS
from orchestrator.conversion.weight_mapping import DECODER
from orchestrator.models.blocks.weights import Rule

_PAIRS = "interleaved_qkv_of_pairs"
_LAYER = "model.layers.{n}."
_BEHIND = {
    f"{ATTENTION}linear_proj.weight": "post_self_attn_layernorm.weight",
    f"{MLP}linear_fc2.weight": "post_mlp_layernorm.weight",
}


def _rules() -> tuple[Rule, ...]:
    found: list[Rule] = []
    bias = replace(QKV_BIAS, transform=_PAIRS, only_with="add_qkv_bias")
    for rule in (*FIRST, replace(QKV, transform=_PAIRS), bias, *REST):
        found.append(JOINED_MLP if rule.ours == JOINED_MLP.ours else rule)
        if (norm := _BEHIND.get(rule.ours)) is not None:
            found.append(Rule(f"{DECODER}{norm}", (f"{_LAYER}{norm}",)))
    return tuple(found)


GLM4 = replace(
    LLAMA,
    name="GLM-4",
    model_type="glm4",
    architecture="Glm4ForCausalLM",
    rules=_rules(),
    sizes={**SIZES, "add_qkv_bias": "attention_bias"},
    fixed={
        **{field: value for field, value in FIXED.items() if field not in ("rotary_percent", "add_qkv_bias")},
        "transformer_block_type": "sandwich_ln",
    },
    constants={},
    defaults={
        **DEFAULTS,
        **{"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1.5625e-07, "attention_bias": True},
        **{"partial_rotary_factor": 0.5, "max_position_embeddings": 131072},
    },
    written={"pad_token_id": None},  # by default a token that a smaller vocabulary does not have
)
GLM = replace(
    GLM4,
    name="GLM",
    model_type="glm",
    architecture="GlmForCausalLM",
    rules=tuple(rule for rule in GLM4.rules if not rule.ours.endswith(tuple(_BEHIND.values()))),
    fixed={**GLM4.fixed, "transformer_block_type": "pre_ln"},
)
