"""Granite 3 with experts, whose weights are one tensor of each layer; the second also has a shared expert."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import whole
from orchestrator.conversion.hugging_face.families.llama import FIRST, MLP, QKV
from orchestrator.conversion.hugging_face.families.llama_variants.granite import GRANITE
from orchestrator.conversion.hugging_face.families.mixture_of_experts.mixtral import fixed_with_experts, with_experts
from orchestrator.conversion.weight_mapping import Derived, Said
from orchestrator.models.blocks.weights import Rule

_LAYER = "model.layers.{n}."
_SHARED = "moe_shared_expert_intermediate_size"
_SHARED_WIDTH = "shared_intermediate_size"
_STACKED = {
    f"{MLP}router.weight": "router.layer.weight",
    f"{MLP}experts.experts.linear_fc1.weight": "input_linear.weight",
    f"{MLP}experts.experts.linear_fc2.weight": "output_linear.weight",
}


def _stacked(rule: Rule) -> Rule:
    name = _STACKED.get(rule.ours)
    if name is None:
        return rule
    found = replace(rule, theirs=(f"{_LAYER}block_sparse_moe.{name}",), transform="same")
    return replace(found, stacked=rule.of_experts)


def _width(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    width = whole(said(_SHARED_WIDTH), _SHARED_WIDTH, least=0)
    return {_SHARED: width} if width else {}


_EXPERTS = with_experts(f"{_LAYER}block_sparse_moe.", "gate", "up", "down")
_SHARED_RULES = (
    Rule(f"{MLP}shared_experts.linear_fc1.weight", (f"{_LAYER}shared_mlp.input_linear.weight",), only_with=_SHARED),
    Rule(f"{MLP}shared_experts.linear_fc2.weight", (f"{_LAYER}shared_mlp.output_linear.weight",), only_with=_SHARED),
)

GRANITE_MOE = replace(
    GRANITE,
    name="Granite with experts",
    model_type="granitemoe",
    architecture="GraniteMoeForCausalLM",
    rules=(*FIRST, QKV, *map(_stacked, _EXPERTS)),
    sizes={
        **GRANITE.sizes,
        "num_experts": "num_local_experts",
        "moe_router_topk": "num_experts_per_tok",
        "moe_aux_loss_coeff": "router_aux_loss_coef",
    },
    fixed=fixed_with_experts(GRANITE.fixed),
    constants={"attention_bias": False},
    defaults={
        **GRANITE.defaults,
        **{"num_local_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.001},
        "intermediate_size": 11008,
    },
)
GRANITE_MOE_SHARED = replace(
    GRANITE_MOE,
    name="Granite with experts of which one is shared",
    model_type="granitemoeshared",
    architecture="GraniteMoeSharedForCausalLM",
    rules=(*GRANITE_MOE.rules[:-2], *_SHARED_RULES, *GRANITE_MOE.rules[-2:]),
    fixed={field: value for field, value in GRANITE_MOE.fixed.items() if field != _SHARED},
    defaults={**GRANITE_MOE.defaults, _SHARED_WIDTH: 0},
    derived=(
        *GRANITE_MOE.derived,
        Derived((_SHARED,), (_SHARED_WIDTH,), _width, lambda model: {_SHARED_WIDTH: model.shared_expert_size}),
    ),
)
