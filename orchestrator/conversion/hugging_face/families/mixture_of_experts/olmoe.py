"""OLMoE: Llama with norms over all queries and all keys, and experts in all layers."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.conversion.hugging_face.families.llama import DEFAULTS, FIRST, FIXED, LLAMA, QKV, SIZES
from orchestrator.conversion.hugging_face.families.mixture_of_experts.mixtral import fixed_with_experts, with_experts
from orchestrator.conversion.hugging_face.families.qwen import QK_NORMS
from orchestrator.conversion.hugging_face.routing import NORMALIZED_SOFTMAX
from orchestrator.conversion.weight_mapping import SameAs

OLMOE = replace(
    LLAMA,
    name="OLMoE",
    model_type="olmoe",
    architecture="OlmoeForCausalLM",
    rules=(*FIRST, QKV, *QK_NORMS, *with_experts("model.layers.{n}.mlp.", "gate_proj", "up_proj", "down_proj")),
    sizes={
        **{field: key for field, key in SIZES.items() if field != "kv_channels"},
        "num_experts": "num_experts",
        "moe_router_topk": "num_experts_per_tok",
        "moe_aux_loss_coeff": "router_aux_loss_coef",
    },
    fixed={
        **fixed_with_experts(FIXED, "moe_router_pre_softmax"),
        **{"kv_channels": None, "qk_layernorm": True, "qk_layernorm_scope": "projection"},
    },
    constants={"attention_bias": False},
    aliases={"num_local_experts": "num_experts"},
    defaults={
        **DEFAULTS,
        **{"num_key_value_heads": SameAs("num_attention_heads"), "rms_norm_eps": 1e-5, "intermediate_size": 2048},
        **{"num_experts": 64, "num_experts_per_tok": 8, "router_aux_loss_coef": 0.01, "norm_topk_prob": False},
        "max_position_embeddings": 4096,
    },
    derived=(NORMALIZED_SOFTMAX,),
)
