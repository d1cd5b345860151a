"""Gemma, the first: norms of 1 + weight, on both sides, and scaled embeddings."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.conversion.hugging_face.families.llama import DEFAULTS, FIXED, LLAMA

GEMMA = replace(
    LLAMA,
    name="Gemma",
    model_type="gemma",
    architecture="GemmaForCausalLM",
    fixed={**FIXED, "apply_layernorm_1p": True, "scale_embeddings": True},
    constants={"attention_bias": False, "use_bidirectional_attention": None},
    defaults={
        **DEFAULTS,
        **{"num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True},
        **{"max_position_embeddings": 8192},
    },
    # What published files call gelu is computed as its approximation all the same.
    activations={"geglu": ("gelu_pytorch_tanh", "gelu")},
    activation_key="hidden_activation",
    repeated={"hidden_act": "hidden_activation"},
)
