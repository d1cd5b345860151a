"""Qwen3-Next: gated delta nets in most layers, gated attention in the others, and experts in all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network, whole
from orchestrator.conversion.hugging_face.families.llama import ATTENTION, FIRST, MLP, QKV
from orchestrator.conversion.hugging_face.families.mixture_of_experts.further_tokens import (
    APART,
    FURTHER_APART,
    FURTHER_LAYER_APART,
)
from orchestrator.conversion.hugging_face.families.mixture_of_experts.mixtral import (
    fixed_with_experts,
    shared_expert,
    with_experts,
)
from orchestrator.conversion.hugging_face.families.qwen import QK_NORMS, QWEN2_MOE, QWEN3_MOE
from orchestrator.conversion.hugging_face.layer_types import GLOBAL, TYPES
from orchestrator.conversion.weight_mapping import Derived, Said
from orchestrator.models.blocks.registry import GATED_DELTA_NET, GROUPED_QUERY
from orchestrator.models.blocks.weights import Rule
from orchestrator.spec.model import ModelSpec

_MLP, _DELTA = "model.layers.{n}.mlp.", "model.layers.{n}.linear_attn."
_EMBEDDING, _NORM = FIRST
_WITH_EXPERTS = with_experts(
    *(_MLP, "gate_proj", "up_proj", "down_proj"),
    *shared_expert(f"{_MLP}shared_expert."),
    Rule(f"{MLP}shared_experts.gate_weight", (f"{_MLP}shared_expert_gate.weight",)),
    dense=True,
)
_OF_ATTENTION = (_NORM, replace(QKV, transform="gated_qkv"), *QK_NORMS, _WITH_EXPERTS[0])
_OF_DELTA = (
    Rule(f"{ATTENTION}in_proj.layer_norm_weight", _NORM.theirs),
    Rule(f"{ATTENTION}in_proj.weight", (f"{_DELTA}in_proj_qkvz.weight", f"{_DELTA}in_proj_ba.weight"), "delta_heads"),
    Rule(f"{ATTENTION}conv1d.weight", (f"{_DELTA}conv1d.weight",), "delta_channels"),
    Rule(f"{ATTENTION}A_log", (f"{_DELTA}A_log",)),
    Rule(f"{ATTENTION}dt_bias", (f"{_DELTA}dt_bias",)),
    Rule(f"{ATTENTION}out_norm.weight", (f"{_DELTA}norm.weight",)),
    Rule(f"{ATTENTION}out_proj.weight", (f"{_DELTA}out_proj.weight",)),
)
_SAME = (
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    "linear_conv_kernel_dim",
)
_LINEAR = "linear_attention"
_INTERVAL = "full_attention_interval"
"""What older versions of transformers read instead of the types of layers."""


def _to_linear(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    types, layers = said(TYPES), whole(fields["num_layers"], "num_hidden_layers")
    if types is None:
        interval = whole(said(_INTERVAL), _INTERVAL)
        types = [GLOBAL if number % interval == 0 else _LINEAR for number in range(1, layers + 1)]
    if not isinstance(types, list) or len(types) != layers or any(each not in (_LINEAR, GLOBAL) for each in types):
        raise no_network(TYPES, types)
    linear = [each == _LINEAR for each in types]
    if len(set(linear)) == 1:
        raise no_network(TYPES, types)
    interval = linear.index(False) + 1
    if linear == [number % interval != 0 for number in range(1, layers + 1)]:
        return {"linear_attention_freq": interval}
    return {"linear_attention_freq": [int(each) for each in linear]}


def _types_of_linear(model: ModelSpec) -> dict[str, Any] | None:
    if not model.has_linear_attention:
        return None
    return {TYPES: [_LINEAR if each else GLOBAL for each in model.linear_attention_layers]}


_LINEAR_LAYERS = Derived(("linear_attention_freq",), (TYPES, _INTERVAL), _to_linear, _types_of_linear)
"""Layers with linear attention, and others with attention to all tokens."""

QWEN3_NEXT = replace(
    QWEN2_MOE,
    name="Qwen3-Next",
    model_type="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    rules=(
        _EMBEDDING,
        *(replace(rule, only_in=GATED_DELTA_NET.name) for rule in _OF_DELTA),
        *(replace(rule, only_in=GROUPED_QUERY.name) for rule in _OF_ATTENTION),
        *_WITH_EXPERTS[1:],
    ),
    sizes={
        **QWEN3_MOE.sizes,
        "moe_shared_expert_intermediate_size": "shared_expert_intermediate_size",
        **dict(zip(_SAME, _SAME, strict=True)),
    },
    fixed={
        **fixed_with_experts(
            QWEN2_MOE.fixed,
            *("moe_layer_freq", "moe_router_pre_softmax", "moe_shared_expert_intermediate_size"),
            *("linear_attention_freq", "rotary_percent"),
        ),
        **{"add_qkv_bias": False, "qk_layernorm": True, "apply_layernorm_1p": True, "attention_output_gate": True},
        "moe_shared_expert_gate": True,
    },
    constants={"attention_bias": False},
    defaults={
        **{**QWEN2_MOE.defaults, "num_key_value_heads": 2, "moe_intermediate_size": 512, "num_experts": 512},
        **{"num_experts_per_tok": 10, "shared_expert_intermediate_size": 512, "norm_topk_prob": True},
        **{"head_dim": 256, "partial_rotary_factor": 0.25, "full_attention_interval": 4},
        **{"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128},
        **{"linear_value_head_dim": 128, "linear_conv_kernel_dim": 4},
    },
    heads=(*QWEN2_MOE.heads, APART),
    further=FURTHER_APART,
    further_begin=APART,
    further_layers=1,
    derived=(*QWEN3_MOE.derived, _LINEAR_LAYERS, FURTHER_LAYER_APART),
)
