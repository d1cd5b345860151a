"""Qwen 2 and 2.5 (biases of queries, keys, values), and Qwen 3 (norms of queries and keys) without and with experts."""

from __future__ import annotations

from dataclasses import replace

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
)
from orchestrator.conversion.hugging_face.families.mixture_of_experts.mixtral import (
    fixed_with_experts,
    shared_expert,
    with_experts,
)
from orchestrator.conversion.hugging_face.layer_types import SWITCHED_WINDOWS
from orchestrator.conversion.hugging_face.routing import LISTED_LAYERS, NORMALIZED_SOFTMAX, WIDTHS
from orchestrator.conversion.weight_mapping import FP8
from orchestrator.models.blocks.weights import Rule

QKV_BIAS = Rule(
    f"{ATTENTION}linear_qkv.bias", tuple(f"{THEIR_ATTENTION}{part}_proj.bias" for part in "qkv"), "interleaved_qkv"
)

_FIXED = {field: value for field, value in FIXED.items() if field not in SWITCHED_WINDOWS.fields}

QWEN2 = replace(
    LLAMA,
    name="Qwen 2",
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    rules=(*FIRST, QKV, QKV_BIAS, *REST),
    sizes=SIZES,
    fixed={**_FIXED, "add_qkv_bias": True},
    constants={},
    defaults={
        **{**DEFAULTS, "num_key_value_heads": 32, "max_position_embeddings": 32768},
        **{"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28},
    },
    derived=(SWITCHED_WINDOWS,),
)

QK_NORMS = tuple(
    Rule(f"{ATTENTION}{part}_layernorm.weight", (f"{THEIR_ATTENTION}{part}_norm.weight",)) for part in "qk"
)
_NORMED = (*FIRST, QKV, *QK_NORMS)

QWEN3 = replace(
    QWEN2,
    name="Qwen 3",
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    rules=(*_NORMED, *REST),
    fixed={**_FIXED, "qk_layernorm": True},
    constants={"attention_bias": False},
    defaults={**QWEN2.defaults, "head_dim": 128},
    quantizations=frozenset({FP8}),
)

_MLP = "model.layers.{n}.mlp."
_SAID = ("moe_layer_freq", "moe_router_pre_softmax")
"""Fields that config.json says of those with experts."""

QWEN3_MOE = replace(
    QWEN3,
    name="Qwen 3 with experts",
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    rules=(*_NORMED, *with_experts(_MLP, "gate_proj", "up_proj", "down_proj", dense=True)),
    sizes={
        **{field: key for field, key in SIZES.items() if field != "ffn_hidden_size"},
        "num_experts": "num_experts",
        "moe_router_topk": "num_experts_per_tok",
        "moe_aux_loss_coeff": "router_aux_loss_coef",
    },
    fixed={**fixed_with_experts(FIXED, *_SAID), "qk_layernorm": True},
    constants={"use_sliding_window": False, "attention_bias": False},
    defaults={
        **{key: value for key, value in QWEN3.defaults.items() if key != "head_dim"},
        **{"num_key_value_heads": 4, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8},
        **{"router_aux_loss_coef": 0.001, "norm_topk_prob": False, "intermediate_size": 6144, "decoder_sparse_step": 1},
    },
    repeated={"num_local_experts": "num_experts"},
    aliases={"num_local_experts": "num_experts"},
    derived=(LISTED_LAYERS, WIDTHS, NORMALIZED_SOFTMAX),
    # Of windows, which use_sliding_window says there are none of.
    ignored=frozenset({"sliding_window", "max_window_layers"}),
)

QWEN2_MOE = replace(
    QWEN3_MOE,
    name="Qwen 2 with experts",
    model_type="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    rules=(
        *(*FIRST, QKV, replace(QKV_BIAS, only_with="add_qkv_bias")),
        *with_experts(
            *(_MLP, "gate_proj", "up_proj", "down_proj"),
            *shared_expert(f"{_MLP}shared_expert."),
            Rule(f"{MLP}shared_experts.gate_weight", (f"{_MLP}shared_expert_gate.weight",)),
            dense=True,
        ),
    ),
    sizes={
        **QWEN3_MOE.sizes,
        "add_qkv_bias": "qkv_bias",
        "moe_shared_expert_intermediate_size": "shared_expert_intermediate_size",
    },
    fixed={
        **fixed_with_experts(FIXED, *_SAID, "add_qkv_bias", "moe_shared_expert_intermediate_size"),
        "moe_shared_expert_gate": True,
    },
    constants={"use_sliding_window": False},
    defaults={
        **{**QWEN3_MOE.defaults, "num_key_value_heads": 16, "moe_intermediate_size": 1408, "num_experts": 60},
        **{"num_experts_per_tok": 4, "intermediate_size": 5632, "shared_expert_intermediate_size": 5632},
        "qkv_bias": True,
    },
    repeated={},
    aliases={},
)
