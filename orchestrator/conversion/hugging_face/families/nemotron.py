"""Nemotron 4: LayerNorm of 1 + weight, squared ReLU, and positions that rotate half of each head."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.conversion.hugging_face.families.llama import (
    DEFAULTS,
    FIXED,
    LLAMA,
    MLP,
    SIZES,
    THEIR_MLP,
)
from orchestrator.conversion.hugging_face.families.stablelm import STABLELM
from orchestrator.conversion.weight_mapping import SameAs
from orchestrator.models.blocks.weights import Rule

_FC1 = f"{MLP}linear_fc1.weight"

NEMOTRON = replace(
    LLAMA,
    name="Nemotron",
    model_type="nemotron",
    architecture="NemotronForCausalLM",
    rules=tuple(
        Rule(_FC1, (f"{THEIR_MLP}up_proj.weight",)) if rule.ours == _FC1 else rule
        for rule in STABLELM.rules
        if rule.only_with != "add_qkv_bias"
    ),
    sizes={**SIZES, "norm_epsilon": "norm_eps"},
    fixed={
        **{field: value for field, value in FIXED.items() if field != "rotary_percent"},
        **{"normalization": "LayerNorm", "apply_layernorm_1p": True},
    },
    defaults={
        **DEFAULTS,
        **{"num_key_value_heads": SameAs("num_attention_heads"), "norm_eps": 1e-5, "initializer_range": 0.0134},
        **{"partial_rotary_factor": 0.5, "max_position_embeddings": 4096},
    },
    activations={"squared_relu": ("relu2",)},
)
