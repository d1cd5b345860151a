"""Llama 2 and 3, and what the decoders that followed it have in common with it."""

from __future__ import annotations

from typing import Any

from orchestrator.conversion.weight_mapping import DECODER, Derived, Family
from orchestrator.models.blocks import registry as blocks
from orchestrator.models.blocks.weights import Rule

ATTENTION, MLP = f"{DECODER}self_attention.", f"{DECODER}mlp."
THEIR_ATTENTION, THEIR_MLP = "model.layers.{n}.self_attn.", "model.layers.{n}.mlp."
QKV = Rule(
    f"{ATTENTION}linear_qkv.weight", tuple(f"{THEIR_ATTENTION}{part}_proj.weight" for part in "qkv"), "interleaved_qkv"
)


def with_bias(ours: str, theirs: str, only_with: str | None = None) -> tuple[Rule, ...]:
    """The weight and the bias of a layer; the names of both begin so. `only_with`: the field of `model` without which
    there is no bias.
    """
    return (
        Rule(f"{ours}weight", (f"{theirs}weight",)),
        Rule(f"{ours}bias", (f"{theirs}bias",), only_with=only_with),
    )


NORMS_OF_HEADS = ("qk_layernorm", "qk_layernorm_scope")


def norms_of_heads(key: str) -> Derived:
    """A key of config.json that says whether each head of queries and keys has a norm with weights of its own."""
    return Derived(
        NORMS_OF_HEADS,
        (key,),
        lambda said, fields: dict(zip(NORMS_OF_HEADS, (True, "per_head"), strict=True)) if said(key) else {},
        lambda model: (
            None if model.qk_layernorm and model.qk_layernorm_scope != "per_head" else {key: model.qk_layernorm}
        ),
    )


FIRST = (
    Rule("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), "padded_rows"),
    Rule(f"{ATTENTION}linear_qkv.layer_norm_weight", ("model.layers.{n}.input_layernorm.weight",)),
)
DENSE = (
    Rule(
        f"{MLP}linear_fc1.layer_norm_weight",
        ("model.layers.{n}.post_attention_layernorm.weight",),
        only_in=blocks.MLP.name,
    ),
    Rule(
        f"{MLP}linear_fc1.weight",
        (f"{THEIR_MLP}gate_proj.weight", f"{THEIR_MLP}up_proj.weight"),
        "joined_halves",
        only_in=blocks.MLP.name,
    ),
    Rule(f"{MLP}linear_fc2.weight", (f"{THEIR_MLP}down_proj.weight",), only_in=blocks.MLP.name),
)
REST = (
    Rule(f"{ATTENTION}linear_proj.weight", (f"{THEIR_ATTENTION}o_proj.weight",)),
    *DENSE,
    Rule("decoder.final_layernorm.weight", ("model.norm.weight",)),
    Rule("output_layer.weight", ("lm_head.weight",), "padded_rows", only_with="untie_embeddings_and_output_weights"),
)

SIZES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_key_value_heads",
    "kv_channels": "head_dim",
    "ffn_hidden_size": "intermediate_size",
    "norm_epsilon": "rms_norm_eps",
    "attention_dropout": "attention_dropout",
    "init_method_std": "initializer_range",
}
DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
}
FIXED: dict[str, Any] = {
    "architecture": "gpt",
    "position_embedding_type": "rope",
    "position_embedding_offset": 0,
    "rotary_percent": 1.0,
    "rotary_base_local": None,
    "no_rope_freq": None,
    "attention_temperature_scale": None,
    "attention_chunk_size": None,
    "sliding_window": None,
    "window_attn_skip_freq": None,
    "attention_logit_softcapping": None,
    "softmax_scale": None,
    "softmax_type": "vanilla",
    "final_logit_softcapping": None,
    "normalization": "RMSNorm",
    "norm_bias": True,
    "transformer_block_type": "pre_ln",
    "parallel_residual": None,
    "embedding_norm": False,
    "apply_layernorm_1p": False,
    "add_bias_linear": False,
    "add_qkv_bias": False,
    "qk_layernorm": False,
    "qk_layernorm_scope": "head",
    "attention_output_gate": False,
    "linear_attention_freq": None,
    "qk_l2_norm": False,
    "scale_embeddings": False,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logit_scale": 1.0,
    "num_experts": None,
    "mrope_section": None,
    "vision": None,
}

LLAMA = Family(
    name="Llama",
    model_type="llama",
    architecture="LlamaForCausalLM",
    base="model.",
    rules=(*FIRST, QKV, *REST),
    sizes=SIZES,
    fixed=FIXED,
    constants={"attention_bias": False, "mlp_bias": False},
    defaults=DEFAULTS,
    activations={"swiglu": ("silu",)},
)
