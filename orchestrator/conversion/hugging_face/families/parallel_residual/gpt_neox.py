"""GPT-NeoX and Pythia: GPT-2's norms, biases and MLP, positions that rotate a part of each head, and mostly a parallel
residual.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.conversion.hugging_face.families.llama import (
    ATTENTION,
    DEFAULTS,
    FIXED,
    LLAMA,
    MLP,
    SIZES,
    with_bias,
)
from orchestrator.conversion.weight_mapping import Derived
from orchestrator.models.blocks.weights import Rule

_LAYER = "gpt_neox.layers.{n}."
_PARALLEL, _RESIDUAL = "use_parallel_residual", "parallel_residual"
_BASE, _PART = {"rotary_emb_base": "rope_theta"}, {"rotary_pct": "partial_rotary_factor"}
TABLES_GELU = {"gelu": ("gelu",), "gelu_tanh": ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")}

GPT_NEOX = replace(
    LLAMA,
    name="GPT-NeoX",
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    base="gpt_neox.",
    # Queries, keys and values lie head by head, as ours do.
    rules=(
        Rule("embedding.word_embeddings.weight", ("gpt_neox.embed_in.weight",), "padded_rows"),
        *with_bias(f"{ATTENTION}linear_qkv.layer_norm_", f"{_LAYER}input_layernorm."),
        *with_bias(f"{ATTENTION}linear_qkv.", f"{_LAYER}attention.query_key_value."),
        *with_bias(f"{ATTENTION}linear_proj.", f"{_LAYER}attention.dense."),
        *with_bias(f"{MLP}linear_fc1.layer_norm_", f"{_LAYER}post_attention_layernorm."),
        *with_bias(f"{MLP}linear_fc1.", f"{_LAYER}mlp.dense_h_to_4h."),
        *with_bias(f"{MLP}linear_fc2.", f"{_LAYER}mlp.dense_4h_to_h."),
        *with_bias("decoder.final_layernorm.", "gpt_neox.final_layer_norm."),
        Rule("output_layer.weight", ("embed_out.weight",), "padded_rows", "untie_embeddings_and_output_weights"),
    ),
    sizes={
        **{field: key for field, key in SIZES.items() if field not in ("num_query_groups", "kv_channels")},
        **{"norm_epsilon": "layer_norm_eps", "hidden_dropout": "hidden_dropout"},
    },
    fixed={
        **{field: value for field, value in FIXED.items() if field not in ("rotary_percent", _RESIDUAL)},
        **{"normalization": "LayerNorm", "add_bias_linear": True, "num_query_groups": None, "kv_channels": None},
    },
    constants={"attention_bias": True},
    defaults={
        **{"layer_norm_eps": 1e-5, "attention_dropout": 0.0, "hidden_dropout": 0.0, "initializer_range": 0.02},
        **{"tie_word_embeddings": False, "max_position_embeddings": DEFAULTS["max_position_embeddings"]},
        **{"partial_rotary_factor": 0.25, _PARALLEL: True, "hidden_act": "gelu"},
    },
    activations=TABLES_GELU,
    derived=(
        Derived(
            (_RESIDUAL,),
            (_PARALLEL,),
            lambda said, fields: {_RESIDUAL: "two_norms" if said(_PARALLEL) else None},
            lambda model: None if model.parallel_residual == "one_norm" else {_PARALLEL: bool(model.parallel_residual)},
        ),
    ),
    buffers=(".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq"),
    # Its files of all versions say these two.
    repeated={**_BASE, **_PART},
    aliases={**_BASE, **_PART},
    # What published files say as well, and transformers does not read.
    ignored=frozenset({"attention_probs_dropout_prob", "hidden_dropout_prob"}),
    heads=("embed_out.", "lm_head."),
    moved={"lm_head.": "embed_out."},
    copies={"embed_out.weight": "gpt_neox.embed_in.weight"},
)
