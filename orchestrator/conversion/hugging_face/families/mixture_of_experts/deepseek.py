"""DeepSeek V2 and V3: latent attention, and experts in all layers but the first ones."""

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
    REST,
    SIZES,
    THEIR_ATTENTION,
)
from orchestrator.conversion.hugging_face.families.mixture_of_experts.further_tokens import (
    FURTHER,
    FURTHER_COPIES,
    FURTHER_LAYERS,
)
from orchestrator.conversion.hugging_face.families.mixture_of_experts.glm import EXPERT_BIAS
from orchestrator.conversion.hugging_face.families.mixture_of_experts.mixtral import (
    fixed_with_experts,
    shared_expert,
    with_experts,
)
from orchestrator.conversion.hugging_face.routing import (
    FACTOR,
    LATER_LAYERS,
    NORMALIZED_SIGMOID,
    SHARED_EXPERTS,
    WIDTHS,
    groups,
)
from orchestrator.conversion.weight_mapping import FP8, Derived, OneOf, Said
from orchestrator.models.blocks.registry import LATENT
from orchestrator.models.blocks.weights import Rule
from orchestrator.spec.model import ModelSpec

_EMBEDDING, _ = FIRST
_MLP = "model.layers.{n}.mlp."
_NORM_EPSILON = 1e-6
"""transformers gives the norms of latents no other."""
_ATTENTION = (
    Rule(f"{ATTENTION}linear_kv_down_proj.layer_norm_weight", ("model.layers.{n}.input_layernorm.weight",)),
    Rule(f"{ATTENTION}linear_q_proj.weight", (f"{THEIR_ATTENTION}q_proj.weight",), unless="q_lora_rank"),
    Rule(f"{ATTENTION}linear_q_down_proj.weight", (f"{THEIR_ATTENTION}q_a_proj.weight",), only_with="q_lora_rank"),
    Rule(f"{ATTENTION}q_layernorm.weight", (f"{THEIR_ATTENTION}q_a_layernorm.weight",), only_with="q_lora_rank"),
    Rule(f"{ATTENTION}linear_q_up_proj.weight", (f"{THEIR_ATTENTION}q_b_proj.weight",), only_with="q_lora_rank"),
    Rule(f"{ATTENTION}linear_kv_down_proj.weight", (f"{THEIR_ATTENTION}kv_a_proj_with_mqa.weight",)),
    Rule(f"{ATTENTION}kv_layernorm.weight", (f"{THEIR_ATTENTION}kv_a_layernorm.weight",)),
    Rule(f"{ATTENTION}linear_kv_up_proj.weight", (f"{THEIR_ATTENTION}kv_b_proj.weight",)),
)
_FIXED = {**FIXED, "qk_layernorm": True, "norm_epsilon": _NORM_EPSILON}
_TRAINING = frozenset(("aux_loss_alpha", "seq_aux", "ep_size"))
_EXPERTS = frozenset(
    {
        *("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "num_experts_per_tok", "moe_layer_freq"),
        *("routed_scaling_factor", "n_group", "topk_group", "topk_method", "norm_topk_prob", "scoring_func"),
    }
)
"""Keys that are for layers with experts."""

DEEPSEEK_V2_DENSE = replace(
    LLAMA,
    name="DeepSeek V2 without experts",
    model_type="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    rules=(_EMBEDDING, *_ATTENTION, *REST),
    sizes={
        **{field: key for field, key in SIZES.items() if field not in ("kv_channels", "norm_epsilon")},
        **{"kv_lora_rank": "kv_lora_rank", "q_lora_rank": "q_lora_rank", "qk_head_dim": "qk_nope_head_dim"},
        **{"qk_pos_emb_head_dim": "qk_rope_head_dim", "v_head_dim": "v_head_dim"},
    },
    fixed=_FIXED,
    constants={**LLAMA.constants, "rms_norm_eps": _NORM_EPSILON},
    defaults={
        **{key: value for key, value in DEFAULTS.items() if key != "rms_norm_eps"},
        **{"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
        "v_head_dim": 128,
    },
    repeated={"first_k_dense_replace": "num_hidden_layers"},
    aliases={"first_k_dense_replace": "num_hidden_layers", "num_experts": "n_routed_experts"},
    ignored=frozenset(("head_dim", "qk_head_dim")) | _TRAINING | _EXPERTS,
    attention=LATENT.name,
)
DEEPSEEK_V3_DENSE = replace(
    DEEPSEEK_V2_DENSE,
    name="DeepSeek V3 without experts",
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    constants={**DEEPSEEK_V2_DENSE.constants, "rope_interleave": True},
    defaults={**DEEPSEEK_V2_DENSE.defaults, "max_position_embeddings": 4096},
    aliases={
        "first_k_dense_replace": "num_hidden_layers",
        **{"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    },
    ignored=DEEPSEEK_V2_DENSE.ignored | {"num_nextn_predict_layers"},
)


_BEST_OF_GROUPS = groups(1)


def _groups_of_method(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    method = said("topk_method")
    if method not in ("greedy", "group_limited_greedy"):
        raise no_network("topk_method", method)
    return {} if method == "greedy" else _BEST_OF_GROUPS.to_fields(said, fields)


def _method_of_groups(model: ModelSpec) -> dict[str, Any] | None:
    method = "greedy" if model.moe_router_num_groups is None else "group_limited_greedy"
    found = _BEST_OF_GROUPS.to_keys(model)
    return None if found is None else {**found, "topk_method": method}


_GROUPS = Derived(_BEST_OF_GROUPS.fields, (*_BEST_OF_GROUPS.keys, "topk_method"), _groups_of_method, _method_of_groups)
"""Experts are chosen from all groups, or from those that have the highest scores."""


_SIZES = {
    **{field: key for field, key in DEEPSEEK_V2_DENSE.sizes.items() if field != "ffn_hidden_size"},
    "num_experts": "n_routed_experts",
    "moe_router_topk": "num_experts_per_tok",
}
_FREE = (
    *("moe_layer_freq", "moe_router_topk_scaling_factor", "moe_shared_expert_intermediate_size"),
    "moe_router_num_groups",
)
DEEPSEEK_V2 = replace(
    DEEPSEEK_V2_DENSE,
    name="DeepSeek V2",
    rules=(
        *(_EMBEDDING, *_ATTENTION),
        *with_experts(
            *(_MLP, "gate_proj", "up_proj", "down_proj"), *shared_expert(f"{_MLP}shared_experts."), dense=True
        ),
    ),
    sizes=_SIZES,
    # The weights of chosen experts are not made to sum to 1.
    fixed={**fixed_with_experts(_FIXED, *_FREE), "moe_router_pre_softmax": True},
    constants={
        **DEEPSEEK_V2_DENSE.constants,
        **{"norm_topk_prob": False, "moe_layer_freq": 1, "scoring_func": "softmax"},
    },
    # The router computes in fp32 there.
    imported={"moe_router_dtype": "fp32"},
    defaults={
        **DEEPSEEK_V2_DENSE.defaults,
        **{"intermediate_size": 11008, "moe_intermediate_size": 1407, "n_routed_experts": 64, "n_shared_experts": 2},
        **{"routed_scaling_factor": 1.0, "topk_method": "greedy", "first_k_dense_replace": 0},
    },
    repeated={},
    aliases={"num_experts": "n_routed_experts"},
    ignored=frozenset(("head_dim", "qk_head_dim")) | _TRAINING,
    told_by=".mlp.gate.weight",
    derived=(LATER_LAYERS, WIDTHS, SHARED_EXPERTS, FACTOR, _GROUPS),
)
DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    name="DeepSeek V3",
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    rules=(
        *(_EMBEDDING, *_ATTENTION),
        *with_experts(
            *(_MLP, "gate_proj", "up_proj", "down_proj"),
            *(EXPERT_BIAS, *shared_expert(f"{_MLP}shared_experts.")),
            dense=True,
        ),
    ),
    fixed={
        **fixed_with_experts(_FIXED, *_FREE),
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_load_balancing_type": OneOf(("none", "aux_loss", "seq_aux_loss", "global_aux_loss")),
    },
    constants={
        **DEEPSEEK_V3_DENSE.constants,
        **{"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    },
    defaults={
        **DEEPSEEK_V3_DENSE.defaults,
        **{"intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1},
        **{"num_experts_per_tok": 8, "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4},
        **{"first_k_dense_replace": 3, "norm_topk_prob": True},
    },
    aliases={"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    # Further tokens are predicted by layers behind the last one; those that a job does not ask for are left out.
    longer="model.layers.",
    further=FURTHER,
    further_copies=FURTHER_COPIES,
    quantizations=frozenset({FP8}),
    derived=(LATER_LAYERS, WIDTHS, SHARED_EXPERTS, FACTOR, NORMALIZED_SIGMOID, groups(2), FURTHER_LAYERS),
)
