"""Phi-3 and Phi-4: Llama with one matrix for queries, keys and values, and one for both halves of its MLP."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.conversion.hugging_face.families.llama import (
    ATTENTION,
    DEFAULTS,
    FIRST,
    FIXED,
    LLAMA,
    MLP,
    REST,
    SIZES,
    THEIR_ATTENTION,
    THEIR_MLP,
)
from orchestrator.conversion.weight_mapping import SameAs
from orchestrator.models.blocks.weights import Rule

JOINED_MLP = Rule(f"{MLP}linear_fc1.weight", (f"{THEIR_MLP}gate_up_proj.weight",))
_JOINED = {
    f"{ATTENTION}linear_qkv.weight": Rule(
        f"{ATTENTION}linear_qkv.weight", (f"{THEIR_ATTENTION}qkv_proj.weight",), "joined_qkv"
    ),
    JOINED_MLP.ours: JOINED_MLP,
}

PHI3 = replace(
    LLAMA,
    name="Phi-3",
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    rules=(*FIRST, _JOINED[f"{ATTENTION}linear_qkv.weight"], *(_JOINED.get(rule.ours, rule) for rule in REST)),
    sizes={
        **{field: key for field, key in SIZES.items() if field != "kv_channels"},
        **{"hidden_dropout": "resid_pdrop", "sliding_window": "sliding_window"},
    },
    fixed={
        **{field: value for field, value in FIXED.items() if field not in ("sliding_window", "rotary_percent")},
        "kv_channels": None,
    },
    constants={"attention_bias": False},
    defaults={
        **DEFAULTS,
        **{"num_key_value_heads": SameAs("num_attention_heads"), "rms_norm_eps": 1e-5, "resid_pdrop": 0.0},
        **{"max_position_embeddings": 4096, "original_max_position_embeddings": 4096},
    },
    written={"pad_token_id": None},  # by default a token that a smaller vocabulary does not have
    repeated={"embd_pdrop": "resid_pdrop"},
)
