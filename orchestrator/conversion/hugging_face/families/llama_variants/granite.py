"""Granite 3: Llama with factors of the embeddings, of what attention and MLP give, of the scores and of the logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network
from orchestrator.conversion.hugging_face.families.llama import DEFAULTS, FIXED, LLAMA, SIZES
from orchestrator.conversion.weight_mapping import Derived, Said, SameAs

_SCALING = "logits_scaling"
_OWN: Mapping[str, str] = {
    "embedding_multiplier": "embedding_multiplier",
    "residual_multiplier": "residual_multiplier",
    "softmax_scale": "attention_multiplier",
}


def _scale(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    divisor = said(_SCALING)
    if isinstance(divisor, bool) or not isinstance(divisor, int | float) or divisor <= 0:
        raise no_network(_SCALING, divisor)
    return {"logit_scale": 1.0 / divisor}


GRANITE = replace(
    LLAMA,
    name="Granite",
    model_type="granite",
    architecture="GraniteForCausalLM",
    sizes={**SIZES, **_OWN},
    derived=(Derived(("logit_scale",), (_SCALING,), _scale, lambda model: {_SCALING: 1.0 / model.logit_scale}),),
    fixed={field: value for field, value in FIXED.items() if field not in (*_OWN, "logit_scale")},
    defaults={
        **DEFAULTS,
        **{"num_key_value_heads": SameAs("num_attention_heads"), "attention_multiplier": 1.0, _SCALING: 1.0},
    },
)
