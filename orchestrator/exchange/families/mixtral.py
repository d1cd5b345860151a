"""Mixtral: Mistral whose MLPs are experts."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.exchange.families.llama import ATTENTION, FIRST, MLP, QKV, REST, THEIR_ATTENTION
from orchestrator.exchange.families.mistral import MISTRAL
from orchestrator.exchange.table import DECODER, OneOf, Rule

_THEIRS = "model.layers.{n}.block_sparse_moe."
_EXPERT, _THEIR_EXPERT = f"{MLP}experts.experts.", f"{_THEIRS}experts.{{e}}."
_GATE_AND_UP = (f"{_THEIR_EXPERT}w1.weight", f"{_THEIR_EXPERT}w3.weight")
_OWN = {
    "moe_layer_freq": 1,
    "moe_shared_expert_intermediate_size": None,
    "moe_router_score_function": "softmax",
    "moe_router_pre_softmax": False,
    "moe_router_load_balancing_type": OneOf(("aux_loss", "seq_aux_loss", "none")),
    "moe_expert_capacity_factor": None,
}

MIXTRAL = replace(
    MISTRAL,
    name="Mixtral",
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    rules=(
        *(*FIRST, QKV),
        Rule(f"{ATTENTION}linear_proj.weight", (f"{THEIR_ATTENTION}o_proj.weight",)),
        Rule(f"{DECODER}pre_mlp_layernorm.weight", ("model.layers.{n}.post_attention_layernorm.weight",)),
        Rule(f"{MLP}router.weight", (f"{_THEIRS}gate.weight",)),
        Rule(f"{_EXPERT}linear_fc1.weight", _GATE_AND_UP, "joined_halves", of_experts=True),
        Rule(f"{_EXPERT}linear_fc2.weight", (f"{_THEIR_EXPERT}w2.weight",), of_experts=True),
        *(rule for rule in REST if not rule.ours.startswith(DECODER)),
    ),
    sizes={
        **MISTRAL.sizes,
        "num_experts": "num_local_experts",
        "moe_router_topk": "num_experts_per_tok",
        "moe_aux_loss_coeff": "router_aux_loss_coef",
    },
    fixed={**{field: value for field, value in MISTRAL.fixed.items() if field != "num_experts"}, **_OWN},
    constants={"router_jitter_noise": 0.0},
    defaults={
        **{key: value for key, value in MISTRAL.defaults.items() if key != "sliding_window"},
        **{"num_local_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.001},
        **{"rms_norm_eps": 1e-5, "rope_theta": 1000000},
    },
)
