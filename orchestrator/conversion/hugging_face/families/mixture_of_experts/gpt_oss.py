"""gpt-oss: attention with sinks, and experts with biases, of which every rank's are stacked in one tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network
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
    THEIR_ATTENTION,
    with_bias,
)
from orchestrator.conversion.hugging_face.families.mixture_of_experts.mixtral import fixed_with_experts
from orchestrator.conversion.hugging_face.families.qwen import QKV_BIAS
from orchestrator.conversion.weight_mapping import DECODER, MXFP4, Derived, Said
from orchestrator.models.blocks.weights import Rule
from orchestrator.spec.model import ModelSpec

_LIMIT = "swiglu_limit"
_MLP = "model.layers.{n}.mlp."
_EXPERT, _EXPERTS = f"{MLP}experts.experts.", f"{_MLP}experts."


def _clamp(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    limit = said(_LIMIT)
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
        raise no_network(_LIMIT, limit)
    return {"activation_func_clamp_value": limit}


def _limit(model: ModelSpec) -> dict[str, Any] | None:
    limit = model.activation_func_clamp_value
    return None if limit is None else {_LIMIT: limit}


def _stacked(ours: str, theirs: str, transform: str) -> Rule:
    return Rule(f"{_EXPERT}{ours}", (f"{_EXPERTS}{theirs}",), transform, of_experts=True, stacked=True)


GPT_OSS = replace(
    LLAMA,
    name="gpt-oss",
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    rules=(
        *(*FIRST, QKV, QKV_BIAS),
        Rule(f"{ATTENTION}core_attention.softmax_offset", (f"{THEIR_ATTENTION}sinks",)),
        *with_bias(f"{ATTENTION}linear_proj.", f"{THEIR_ATTENTION}o_proj."),
        Rule(f"{DECODER}pre_mlp_layernorm.weight", ("model.layers.{n}.post_attention_layernorm.weight",)),
        *with_bias(f"{MLP}router.", f"{_MLP}router."),
        _stacked("linear_fc1.weight", "gate_up_proj", "interleaved_halves"),
        _stacked("linear_fc1.bias", "gate_up_proj_bias", "interleaved_halves"),
        _stacked("linear_fc2.weight", "down_proj", "transposed"),
        _stacked("linear_fc2.bias", "down_proj_bias", "same"),
        *(rule for rule in REST if not rule.ours.startswith(DECODER)),
    ),
    sizes={
        **SIZES,
        **{"sliding_window": "sliding_window", "num_experts": "num_local_experts"},
        **{"moe_router_topk": "num_experts_per_tok", "moe_aux_loss_coeff": "router_aux_loss_coef"},
    },
    fixed={
        **fixed_with_experts(FIXED, "sliding_window", "window_attn_skip_freq"),
        **{"add_bias_linear": True, "softmax_type": "learnable", "glu_linear_offset": 1.0},
    },
    derived=(Derived(("activation_func_clamp_value",), (_LIMIT,), _clamp, _limit),),
    # transformers reads the name of its activation, and computes quick GeGLU.
    activations={"quick_geglu": ("silu",)},
    constants={"attention_bias": True, "swiglu_alpha": 1.702},
    defaults={
        **{**DEFAULTS, "rms_norm_eps": 1e-5, "num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088},
        **{"hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64},
        **{"num_key_value_heads": 8, "sliding_window": 128, "max_position_embeddings": 131072},
        **{"num_experts_per_tok": 4, "router_aux_loss_coef": 0.001, _LIMIT: 7.0, "rope_theta": 150000},
        "rope_parameters": {
            **{"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
            **{"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        },
    },
    aliases={"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
    # What rope_parameters say again, as OpenAI's own program calls it.
    ignored=frozenset({"initial_context_length"}),
    global_interval=2,
    quantizations=frozenset({MXFP4}),
)
