"""GPT-2: its matrices lie transposed, and queries, keys and values are one after the other."""

from __future__ import annotations

from orchestrator.conversion.hugging_face.families.llama import FIXED
from orchestrator.conversion.weight_mapping import DECODER, Family
from orchestrator.models.blocks.weights import Rule

_NAMES = {
    "self_attention.linear_qkv.layer_norm_": ("ln_1.", "same"),
    "self_attention.linear_qkv.": ("attn.c_attn.", "transposed_qkv"),
    "self_attention.linear_proj.": ("attn.c_proj.", "transposed"),
    "mlp.linear_fc1.layer_norm_": ("ln_2.", "same"),
    "mlp.linear_fc1.": ("mlp.c_fc.", "transposed"),
    "mlp.linear_fc2.": ("mlp.c_proj.", "transposed"),
}
_LAYER = tuple(
    Rule(f"{DECODER}{ours}{kind}", (f"transformer.h.{{n}}.{theirs}{kind}",), transform)
    for ours, (theirs, transform) in _NAMES.items()
    for kind in ("weight", "bias")
)

GPT2 = Family(
    name="GPT-2",
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    base="transformer.",
    rules=(
        Rule("embedding.word_embeddings.weight", ("transformer.wte.weight",), "padded_rows"),
        Rule("embedding.position_embeddings.weight", ("transformer.wpe.weight",)),
        *_LAYER,
        Rule("decoder.final_layernorm.weight", ("transformer.ln_f.weight",)),
        Rule("decoder.final_layernorm.bias", ("transformer.ln_f.bias",)),
        Rule(
            "output_layer.weight", ("lm_head.weight",), "padded_rows", only_with="untie_embeddings_and_output_weights"
        ),
    ),
    sizes={
        "num_layers": "n_layer",
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "ffn_hidden_size": "n_inner",
        "norm_epsilon": "layer_norm_epsilon",
        "hidden_dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
        "init_method_std": "initializer_range",
    },
    fixed={
        **{field: value for field, value in FIXED.items() if field != "rotary_percent"},
        **{"position_embedding_type": "learned_absolute", "normalization": "LayerNorm", "add_bias_linear": True},
        **{"num_query_groups": None, "kv_channels": None},
    },
    constants={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    defaults={
        **{"layer_norm_epsilon": 1e-5, "resid_pdrop": 0.1, "attn_pdrop": 0.1, "initializer_range": 0.02},
        **{"tie_word_embeddings": True, "n_positions": 1024, "activation_function": "gelu_new"},
    },
    activations={"gelu_tanh": ("gelu_new", "gelu_pytorch_tanh"), "gelu": ("gelu",)},
    activation_key="activation_function",
    rotary=False,
    positions="n_positions",
    repeated={"embd_pdrop": "resid_pdrop"},
    aliases={
        **{"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
        "max_position_embeddings": "n_positions",
    },
    ignored=frozenset(
        {
            *("n_ctx", "n_special", "predict_special_tokens"),
            *("summary_activation", "summary_first_dropout", "summary_last_dropout"),
            *("summary_proj_to_labels", "summary_type", "summary_use_proj"),
        }
    ),
    copies={"lm_head.weight": "transformer.wte.weight"},
    buffers=(".attn.bias", ".attn.masked_bias"),
)
