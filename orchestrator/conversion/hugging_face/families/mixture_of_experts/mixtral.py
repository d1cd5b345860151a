"""Mixtral, which is Mistral whose MLPs are experts, and what others with experts have in common with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.families.llama import (
    ATTENTION,
    DENSE,
    FIRST,
    MLP,
    QKV,
    REST,
    THEIR_ATTENTION,
)
from orchestrator.conversion.hugging_face.families.mistral import MISTRAL
from orchestrator.conversion.weight_mapping import DECODER, OneOf
from orchestrator.models.blocks.registry import EXPERTS
from orchestrator.models.blocks.weights import Rule

_EXPERT = f"{MLP}experts.experts."
_OWN = {
    "moe_layer_freq": 1,
    "moe_shared_expert_intermediate_size": None,
    "moe_shared_expert_gate": False,
    "moe_router_score_function": "softmax",
    "moe_router_pre_softmax": False,
    "moe_router_topk_scaling_factor": None,
    "moe_apply_probs_on_input": False,
    "moe_router_num_groups": None,
    "moe_router_enable_expert_bias": False,
    "moe_router_load_balancing_type": OneOf(("aux_loss", "seq_aux_loss", "global_aux_loss", "none")),
    "moe_expert_capacity_factor": None,
}


def with_experts(theirs: str, gate: str, up: str, down: str, *more: Rule, dense: bool = False) -> tuple[Rule, ...]:
    """What follows on the queries, keys and values. `theirs` is what the names of their MLP begin with; `more` is
    of the router and of what all tokens pass; `dense`: some layers may have no experts.
    """
    both = tuple(f"{theirs}experts.{{e}}.{name}.weight" for name in (gate, up))
    norm = "model.layers.{n}.post_attention_layernorm.weight"
    of_experts = (
        Rule(f"{DECODER}pre_mlp_layernorm.weight", (norm,)),
        Rule(f"{MLP}router.weight", (f"{theirs}gate.weight",)),
        Rule(f"{_EXPERT}linear_fc1.weight", both, "joined_halves", of_experts=True),
        Rule(f"{_EXPERT}linear_fc2.weight", (f"{theirs}experts.{{e}}.{down}.weight",), of_experts=True),
        *more,
    )
    return (
        Rule(f"{ATTENTION}linear_proj.weight", (f"{THEIR_ATTENTION}o_proj.weight",)),
        *(DENSE if dense else ()),
        *(replace(rule, only_in=EXPERTS.name) for rule in of_experts),
        *(rule for rule in REST if not rule.ours.startswith(DECODER)),
    )


def shared_expert(theirs: str) -> tuple[Rule, ...]:
    """The MLP that every token passes beside its experts; `theirs` is what its names begin with."""
    gate, up, down = (f"{theirs}{name}_proj.weight" for name in ("gate", "up", "down"))
    return (
        Rule(f"{MLP}shared_experts.linear_fc1.weight", (gate, up), "joined_halves"),
        Rule(f"{MLP}shared_experts.linear_fc2.weight", (down,)),
    )


def fixed_with_experts(fixed: Mapping[str, Any], *free: str) -> dict[str, Any]:
    """What a dense family fixes, and how its experts are chosen: the best, weighed by a softmax over them alone.
    `free`: fields that are not fixed.
    """
    every = {**{field: value for field, value in fixed.items() if field != "num_experts"}, **_OWN}
    return {field: value for field, value in every.items() if field not in free}


MIXTRAL = replace(
    MISTRAL,
    name="Mixtral",
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    rules=(*FIRST, QKV, *with_experts("model.layers.{n}.block_sparse_moe.", "w1", "w3", "w2")),
    sizes={
        **MISTRAL.sizes,
        "num_experts": "num_local_experts",
        "moe_router_topk": "num_experts_per_tok",
        "moe_aux_loss_coeff": "router_aux_loss_coef",
    },
    fixed=fixed_with_experts(MISTRAL.fixed),
    constants={"router_jitter_noise": 0.0},
    aliases={"num_experts": "num_local_experts"},
    defaults={
        **{key: value for key, value in MISTRAL.defaults.items() if key != "sliding_window"},
        **{"num_local_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.001},
        **{"rms_norm_eps": 1e-5, "rope_theta": 1000000},
    },
)
