"""Gemma: norms of 1 + weight, and scaled embeddings. The second and the third also have norms behind attention and MLP,
and windows in most layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.families.llama import ATTENTION, DEFAULTS, FIRST, FIXED, LLAMA, MLP, QKV, REST
from orchestrator.conversion.hugging_face.families.qwen import QK_NORMS
from orchestrator.conversion.weight_mapping import DECODER, Derived, Said
from orchestrator.errors import UserError
from orchestrator.models.blocks.weights import Rule
from orchestrator.spec.model import ModelSpec

_SCALAR = "query_pre_attn_scalar"

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


def _scalar(model: ModelSpec) -> dict[str, int] | None:
    """n of a scale of 1 / √n; None where it is no whole number."""
    scalar = round(model.scale_of_scores**-2)
    if abs(scalar**-0.5 - model.scale_of_scores) > 1e-12:
        return None
    return {_SCALAR: scalar}


def _scale(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    scalar = said(_SCALAR)
    if isinstance(scalar, bool) or not isinstance(scalar, int | float) or scalar <= 0 or scalar != scalar // 1:
        raise UserError(
            f"config.json: {_SCALAR} is {scalar!r}, and must be a whole number above 0",
            code="config_value_not_positive",
        )
    return {"softmax_scale": math.pow(scalar, -0.5)}


def _sandwich(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Norms around attention and MLP."""
    theirs = "model.layers.{n}."
    before = {f"{MLP}linear_fc1.layer_norm_weight": (f"{theirs}pre_feedforward_layernorm.weight",)}
    behind = {
        f"{ATTENTION}linear_proj.weight": Rule(
            f"{DECODER}post_self_attn_layernorm.weight", (f"{theirs}post_attention_layernorm.weight",)
        ),
        f"{MLP}linear_fc2.weight": Rule(
            f"{DECODER}post_mlp_layernorm.weight", (f"{theirs}post_feedforward_layernorm.weight",)
        ),
    }
    return tuple(
        each
        for rule in rules
        for each in (
            replace(rule, theirs=before.get(rule.ours, rule.theirs)),
            *((behind[rule.ours],) if rule.ours in behind else ()),
        )
    )


_OWN: Mapping[str, str] = {
    "sliding_window": "sliding_window",
    "attention_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_FREE = (*_OWN, "window_attn_skip_freq", "softmax_scale")

GEMMA2 = replace(
    GEMMA,
    name="Gemma 2",
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    rules=_sandwich((*FIRST, QKV, *REST)),
    sizes={**GEMMA.sizes, **_OWN},
    derived=(Derived(("softmax_scale",), (_SCALAR,), _scale, _scalar),),
    fixed={
        **{field: value for field, value in GEMMA.fixed.items() if field not in _FREE},
        "transformer_block_type": "sandwich_ln",
    },
    defaults={
        **{**GEMMA.defaults, "num_key_value_heads": 4, "sliding_window": 4096, _SCALAR: 256},
        **{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    },
    global_interval=2,
)

GEMMA3 = replace(
    GEMMA2,
    name="Gemma 3",
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    rules=_sandwich((*FIRST, QKV, *QK_NORMS, *REST)),
    sizes={field: key for field, key in GEMMA2.sizes.items() if field != "attention_logit_softcapping"},
    fixed={
        **{field: value for field, value in GEMMA2.fixed.items() if field != "rotary_base_local"},
        **{"qk_layernorm": True, "attention_logit_softcapping": None},
    },
    # transformers reads a cap of the scores, and computes without one.
    constants={"attention_bias": False, "use_bidirectional_attention": False, "attn_logit_softcapping": None},
    defaults={
        **{**GEMMA.defaults, "num_key_value_heads": 4, "sliding_window": 4096, _SCALAR: 256},
        **{"max_position_embeddings": 131072, "rope_theta": 1000000},
    },
    global_interval=6,
    local_base=10000,
)
