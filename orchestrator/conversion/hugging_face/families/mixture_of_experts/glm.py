"""GLM-4.5: sigmoid scores and a bias choose the experts of all layers but the first ones."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.conversion.hugging_face.families.llama import DEFAULTS, FIRST, FIXED, LLAMA, MLP, QKV, SIZES
from orchestrator.conversion.hugging_face.families.mixture_of_experts.further_tokens import (
    FURTHER,
    FURTHER_COPIES,
    FURTHER_LAYERS,
)
from orchestrator.conversion.hugging_face.families.mixture_of_experts.mixtral import (
    fixed_with_experts,
    shared_expert,
    with_experts,
)
from orchestrator.conversion.hugging_face.families.qwen import QK_NORMS, QKV_BIAS
from orchestrator.conversion.hugging_face.routing import (
    FACTOR,
    LATER_LAYERS,
    NORMALIZED_SIGMOID,
    SHARED_EXPERTS,
    WIDTHS,
    groups,
)
from orchestrator.conversion.weight_mapping import OneOf
from orchestrator.models.blocks.weights import Rule

_MLP = "model.layers.{n}.mlp."
EXPERT_BIAS = Rule(f"{MLP}router.expert_bias", (f"{_MLP}gate.e_score_correction_bias",), stays_fp32=True)

GLM4_MOE = replace(
    LLAMA,
    name="GLM-4.5",
    model_type="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    rules=(
        *(*FIRST, QKV, replace(QKV_BIAS, only_with="add_qkv_bias")),
        *(replace(rule, only_with="qk_layernorm") for rule in QK_NORMS),
        *with_experts(
            *(_MLP, "gate_proj", "up_proj", "down_proj"),
            *(EXPERT_BIAS, *shared_expert(f"{_MLP}shared_experts.")),
            dense=True,
        ),
    ),
    sizes={
        **{field: key for field, key in SIZES.items() if field != "ffn_hidden_size"},
        "add_qkv_bias": "attention_bias",
        "qk_layernorm": "use_qk_norm",
        "num_experts": "n_routed_experts",
        "moe_router_topk": "num_experts_per_tok",
    },
    fixed={
        **fixed_with_experts(
            FIXED,
            *("rotary_percent", "add_qkv_bias", "qk_layernorm", "moe_layer_freq", "moe_router_topk_scaling_factor"),
            *("moe_shared_expert_intermediate_size", "moe_router_num_groups"),
        ),
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_load_balancing_type": OneOf(("none", "aux_loss", "seq_aux_loss", "global_aux_loss")),
    },
    constants={},
    # The router computes in fp32 there.
    imported={"moe_router_dtype": "fp32"},
    defaults={
        **{**DEFAULTS, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "max_position_embeddings": 131072},
        **{"partial_rotary_factor": 0.5, "attention_bias": False, "use_qk_norm": False},
        **{"intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 128, "n_shared_experts": 1},
        **{"num_experts_per_tok": 8, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1},
        **{"first_k_dense_replace": 1, "norm_topk_prob": True},
    },
    aliases={"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    # Further tokens are predicted by layers behind the last one; those that a job does not ask for are left out.
    longer="model.layers.",
    further=FURTHER,
    further_copies=FURTHER_COPIES,
    derived=(LATER_LAYERS, WIDTHS, SHARED_EXPERTS, FACTOR, NORMALIZED_SIGMOID, groups(2), FURTHER_LAYERS),
)
