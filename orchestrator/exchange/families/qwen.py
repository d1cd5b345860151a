"""Qwen 2 and 2.5 (biases of queries, keys and values) and Qwen 3 (norms of queries and keys)."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.exchange.families.llama import (
    ATTENTION,
    DEFAULTS,
    FIRST,
    FIXED,
    LLAMA,
    QKV,
    REST,
    SIZES,
    THEIR_ATTENTION,
)
from orchestrator.exchange.table import Rule

_BIASES = tuple(f"{THEIR_ATTENTION}{part}_proj.bias" for part in "qkv")

QWEN2 = replace(
    LLAMA,
    name="Qwen 2",
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    rules=(*FIRST, QKV, Rule(f"{ATTENTION}linear_qkv.bias", _BIASES, "interleaved_qkv"), *REST),
    sizes=SIZES,
    fixed={**FIXED, "add_qkv_bias": True},
    constants={"use_sliding_window": False},
    defaults={**DEFAULTS, "num_key_value_heads": 32, "max_position_embeddings": 32768},
)

QWEN3 = replace(
    QWEN2,
    name="Qwen 3",
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    rules=(
        *(*FIRST, QKV),
        Rule(f"{ATTENTION}q_layernorm.weight", (f"{THEIR_ATTENTION}q_norm.weight",)),
        Rule(f"{ATTENTION}k_layernorm.weight", (f"{THEIR_ATTENTION}k_norm.weight",)),
        *REST,
    ),
    fixed={**FIXED, "qk_layernorm": True},
    constants={"use_sliding_window": False, "attention_bias": False},
    defaults={**QWEN2.defaults, "head_dim": 128},
)
