"""Qwen 2 and 2.5 (biases of queries, keys, values), and Qwen 3 (norms of queries and keys) without and with experts."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.conversion.hugging_face.families.llama import (
    ATTENTION,
    DEFAULTS,
    FIRST,
    FIXED,
    LLAMA,
    QKV,
    REST,
    SIZES,
    THEIR_ATTENTION,
)
from orchestrator.conversion.hugging_face.families.mixtral import fixed_with_experts, with_experts
from orchestrator.models.blocks.weights import Rule

QKV_BIAS = Rule(
    f"{ATTENTION}linear_qkv.bias", tuple(f"{THEIR_ATTENTION}{part}_proj.bias" for part in "qkv"), "interleaved_qkv"
)

QWEN2 = replace(
    LLAMA,
    name="Qwen 2",
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    rules=(*FIRST, QKV, QKV_BIAS, *REST),
    sizes=SIZES,
    fixed={**FIXED, "add_qkv_bias": True},
    constants={"use_sliding_window": False},
    defaults={**DEFAULTS, "num_key_value_heads": 32, "max_position_embeddings": 32768},
    # Of windows, which use_sliding_window says there are none of.
    ignored=frozenset({"sliding_window", "max_window_layers"}),
)

QK_NORMS = (
    Rule(f"{ATTENTION}q_layernorm.weight", (f"{THEIR_ATTENTION}q_norm.weight",)),
    Rule(f"{ATTENTION}k_layernorm.weight", (f"{THEIR_ATTENTION}k_norm.weight",)),
)
_NORMED = (*FIRST, QKV, *QK_NORMS)

QWEN3 = replace(
    QWEN2,
    name="Qwen 3",
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    rules=(*_NORMED, *REST),
    fixed={**FIXED, "qk_layernorm": True},
    constants={"use_sliding_window": False, "attention_bias": False},
    defaults={**QWEN2.defaults, "head_dim": 128},
)

QWEN3_MOE = replace(
    QWEN3,
    name="Qwen 3 with experts",
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    rules=(*_NORMED, *with_experts("model.layers.{n}.mlp.", "gate_proj", "up_proj", "down_proj")),
    sizes={
        **SIZES,
        "ffn_hidden_size": "moe_intermediate_size",
        "num_experts": "num_experts",
        "moe_router_topk": "num_experts_per_tok",
        "moe_aux_loss_coeff": "router_aux_loss_coef",
    },
    fixed=fixed_with_experts(QWEN3.fixed),
    constants={**QWEN3.constants, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": None},
    defaults={
        **{key: value for key, value in QWEN3.defaults.items() if key != "head_dim"},
        **{"num_key_value_heads": 4, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8},
        **{"router_aux_loss_coef": 0.001, "norm_topk_prob": False},
    },
    repeated={"num_local_experts": "num_experts"},
    aliases={"num_local_experts": "num_experts"},
    # Of layers without experts, of which there are none.
    ignored=QWEN3.ignored | {"intermediate_size"},
)
