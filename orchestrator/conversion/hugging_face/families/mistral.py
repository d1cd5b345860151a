"""Mistral: Llama with a window of attention."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.conversion.hugging_face.families.llama import DEFAULTS, FIXED, LLAMA, SIZES

MISTRAL = replace(
    LLAMA,
    name="Mistral",
    model_type="mistral",
    architecture="MistralForCausalLM",
    sizes={**SIZES, "sliding_window": "sliding_window"},
    fixed={field: value for field, value in FIXED.items() if field != "sliding_window"},
    constants={},
    defaults={**DEFAULTS, "num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131072},
)
