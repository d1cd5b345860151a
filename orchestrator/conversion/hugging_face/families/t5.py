"""T5 v1.0 and v1.1, and mT5: an encoder and a decoder with a bias by distance in place of positions."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.conversion.hugging_face.families.llama import FIXED
from orchestrator.conversion.weight_mapping import DECODER, ENCODER, Family, SameAs
from orchestrator.models.blocks.weights import Rule

_ACTIVATIONS = {
    **{"relu": ("relu",), "geglu": ("gated-gelu", "gated-gelu_new"), "swiglu": ("gated-silu",)},
    **{"gelu_tanh": ("gelu_new",), "gelu": ("gelu",)},
}
_UNTIED = "untie_embeddings_and_output_weights"
_BLOCKS = {ENCODER: "encoder.block.{n}.layer.", DECODER: "decoder.block.{n}.layer."}


def _attention(ours: str, theirs: str, norm: str, last: str) -> tuple[Rule, ...]:
    """Of a layer, with the norm before it; `norm`: its key, `last`: its place in their block."""
    parts = tuple(f"{theirs}{part}.weight" for part in "qkv")
    rules = [Rule(norm, (f"{last}layer_norm.weight",))]
    if "self_attention" in ours:
        rules.append(Rule(f"{ours}linear_qkv.weight", parts, "interleaved_qkv"))
    else:
        rules.append(Rule(f"{ours}linear_q.weight", parts[:1]))
        rules.append(Rule(f"{ours}linear_kv.weight", parts[1:], "interleaved_kv"))
    return (*rules, Rule(f"{ours}linear_proj.weight", (f"{theirs}o.weight",)))


def _mlp(stack: str, theirs: str) -> tuple[Rule, ...]:
    first, dense = f"{stack}mlp.linear_fc1.", f"{theirs}DenseReluDense."
    both = (f"{dense}wi_0.weight", f"{dense}wi_1.weight")
    return (
        Rule(f"{first}layer_norm_weight", (f"{theirs}layer_norm.weight",)),
        Rule(f"{first}weight", (f"{dense}wi.weight",), unless="is_gated"),
        Rule(f"{first}weight", both, "joined_halves", only_with="is_gated"),
        Rule(f"{stack}mlp.linear_fc2.weight", (f"{dense}wo.weight",)),
    )


def _half(stack: str, half: str) -> tuple[Rule, ...]:
    """The bias by distance, which is the first layer's there; the layers; the norm behind them."""
    block, is_decoder = _BLOCKS[stack], stack == DECODER
    own, norm = f"{stack}self_attention.", f"{stack}self_attention.linear_qkv.layer_norm_weight"
    across, norm_across = f"{stack}cross_attention.", f"{stack}pre_cross_attn_layernorm.weight"
    bias = f"{half}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return (
        Rule(f"{half}_relative_attention_bias.weight", (bias,)),
        *_attention(own, f"{block}0.SelfAttention.", norm, f"{block}0."),
        *(_attention(across, f"{block}1.EncDecAttention.", norm_across, f"{block}1.") if is_decoder else ()),
        *_mlp(stack, f"{block}{2 if is_decoder else 1}."),
        Rule(f"{half}.final_layernorm.weight", (f"{half}.final_layer_norm.weight",)),
    )


T5 = Family(
    name="T5",
    model_type="t5",
    architecture="T5ForConditionalGeneration",
    base="",
    rules=(
        Rule("embedding.word_embeddings.weight", ("shared.weight",), "padded_rows"),
        *_half(ENCODER, "encoder"),
        *_half(DECODER, "decoder"),
        Rule("output_layer.weight", ("lm_head.weight",), "padded_rows", only_with=_UNTIED),
    ),
    sizes={
        "num_layers": "num_layers",
        "decoder_num_layers": "num_decoder_layers",
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "kv_channels": "d_kv",
        "ffn_hidden_size": "d_ff",
        "norm_epsilon": "layer_norm_epsilon",
        "relative_attention_num_buckets": "relative_attention_num_buckets",
        "relative_attention_max_distance": "relative_attention_max_distance",
        "attention_dropout": "dropout_rate",
        "hidden_dropout": "dropout_rate",
        "scale_decoder_outputs": "scale_decoder_outputs",
    },
    fixed={
        **{field: value for field, value in FIXED.items() if field != "rotary_percent"},
        **{"architecture": "t5", "position_embedding_type": "relative", "softmax_scale": 1.0},
        **{"num_query_groups": None, "add_output_bias": False},
    },
    constants={"is_encoder_decoder": True, "is_decoder": False},
    defaults={
        **{"num_layers": 6, "num_decoder_layers": SameAs("num_layers"), "d_model": 512, "num_heads": 8, "d_kv": 64},
        **{"d_ff": 2048, "layer_norm_epsilon": 1e-6, "dropout_rate": 0.1, "relative_attention_num_buckets": 32},
        **{"relative_attention_max_distance": 128, "tie_word_embeddings": True},
        # As transformers has it: an output layer of its own is not scaled.
        "scale_decoder_outputs": SameAs("tie_word_embeddings"),
    },
    activations=_ACTIVATIONS,
    activation_key="feed_forward_proj",
    aliases={
        **{"hidden_size": "d_model", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"},
        "head_dim": "d_kv",
    },
    implied={
        "is_gated_act": {name: name.startswith("gated-") for names in _ACTIVATIONS.values() for name in names},
        "dense_act_fn": {
            # The one name of which transformers makes another.
            **{name: name.removeprefix("gated-") for names in _ACTIVATIONS.values() for name in names},
            "gated-gelu": "gelu_new",
        },
    },
    ignored=frozenset({"n_positions"}),
    rotary=False,
    positions=None,
    imported={"seq_length": 512, "decoder_seq_length": 128},
    heads=(),
    # In the first T5's files, and used by nothing.
    buffers=("EncDecAttention.relative_attention_bias.weight",),
    copies={
        "lm_head.weight": "shared.weight",
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
)

MT5 = replace(
    T5,
    name="mT5",
    model_type="mt5",
    architecture="MT5ForConditionalGeneration",
    sizes={field: key for field, key in T5.sizes.items() if field != "scale_decoder_outputs"},
    fixed={**T5.fixed, "scale_decoder_outputs": False},
    defaults={
        **{key: value for key, value in T5.defaults.items() if key != "scale_decoder_outputs"},
        **{"num_layers": 8, "d_ff": 1024, "num_heads": 6, "feed_forward_proj": "gated-gelu"},
    },
)
