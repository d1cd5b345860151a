"""StarCoder 2: a decoder with rotary positions and grouped queries, and GPT-2's norms, biases and MLP."""

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
    THEIR_MLP,
    with_bias,
)
from orchestrator.conversion.hugging_face.families.qwen import QKV_BIAS

_BIASES = "add_bias_linear"

STARCODER2 = replace(
    LLAMA,
    name="StarCoder 2",
    model_type="starcoder2",
    architecture="Starcoder2ForCausalLM",
    rules=(
        FIRST[0],
        *with_bias(f"{ATTENTION}linear_qkv.layer_norm_", "model.layers.{n}.input_layernorm."),
        *(QKV, replace(QKV_BIAS, only_with=_BIASES)),
        *with_bias(f"{ATTENTION}linear_proj.", f"{THEIR_ATTENTION}o_proj.", _BIASES),
        *with_bias(f"{MLP}linear_fc1.layer_norm_", "model.layers.{n}.post_attention_layernorm."),
        *with_bias(f"{MLP}linear_fc1.", f"{THEIR_MLP}c_fc.", _BIASES),
        *with_bias(f"{MLP}linear_fc2.", f"{THEIR_MLP}c_proj.", _BIASES),
        *with_bias("decoder.final_layernorm.", "model.norm."),
        REST[-1],
    ),
    sizes={
        **SIZES,
        **{"norm_epsilon": "norm_epsilon", "hidden_dropout": "residual_dropout", "sliding_window": "sliding_window"},
        _BIASES: "use_bias",
    },
    fixed={
        **{field: value for field, value in FIXED.items() if field not in ("sliding_window", _BIASES)},
        "normalization": "LayerNorm",
    },
    constants={},
    defaults={
        **DEFAULTS,
        **{"num_key_value_heads": 2, "norm_epsilon": 1e-5, "residual_dropout": 0.0, "initializer_range": 0.018042},
        **{"use_bias": True, "tie_word_embeddings": True, "max_position_embeddings": 4096},
    },
    activations={"gelu_tanh": ("gelu_pytorch_tanh",), "gelu": ("gelu",)},
    repeated={"embedding_dropout": "residual_dropout"},
    # What published files say as well, and transformers does not read.
    ignored=frozenset(
        {
            *("activation_function", "attention_softmax_in_fp32", "layer_norm_epsilon", "mlp_type", "norm_type"),
            *("scale_attention_softmax_in_fp32", "scale_attn_weights"),
        }
    ),
)
