"""Mistral: Llama with a window of attention; and Ministral, with a window in some layers."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.conversion.hugging_face.families.llama import DEFAULTS, FIXED, LLAMA, SIZES
from orchestrator.conversion.hugging_face.layer_types import LISTED_WINDOWS

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

MINISTRAL = replace(
    MISTRAL,
    name="Ministral",
    model_type="ministral",
    architecture="MinistralForCausalLM",
    sizes=SIZES,
    fixed={field: value for field, value in FIXED.items() if field not in LISTED_WINDOWS.fields},
    derived=(LISTED_WINDOWS,),
)
