"""Falcon: a parallel residual with rotary positions and GPT-2's MLP; 7B and 11B have one norm for attention and MLP,
40B and 180B two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network, whole
from orchestrator.conversion.hugging_face.families.llama import ATTENTION, FIXED, LLAMA, MLP, SIZES, with_bias
from orchestrator.conversion.hugging_face.families.parallel_residual.gpt_neox import TABLES_GELU
from orchestrator.conversion.weight_mapping import DECODER, Derived, Said
from orchestrator.models.blocks.weights import Rule
from orchestrator.spec.model import ModelSpec

_LAYER = "transformer.h.{n}."
_NEW, _MULTI_QUERY, _GROUPS = "new_decoder_architecture", "multi_query", "num_kv_heads"
_NORMS, _WIDTH = "num_ln_in_parallel_attn", "ffn_hidden_size"
_BIASES = "add_bias_linear"


def _groups(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    """Of a model with one norm."""
    if said(_NEW):
        norms = whole(said(_NORMS) or 2, _NORMS)
        if norms != 1:
            raise no_network(_NORMS, norms)
        return {"num_query_groups": said(_GROUPS) or fields["num_attention_heads"]}
    if said(_NORMS) == 2:  # it would have norms that it does not compute with
        raise no_network(_NORMS, 2)
    return {"num_query_groups": 1 if said(_MULTI_QUERY) else fields["num_attention_heads"]}


def _keys_of_groups(model: ModelSpec) -> dict[str, Any]:
    if model.query_groups == 1:
        return {_NEW: False, _MULTI_QUERY: True}
    return {_NEW: True, _GROUPS: model.query_groups, _NORMS: 1}


def _groups_of_two_norms(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    norms = said(_NORMS)
    if norms not in (None, 2):
        raise no_network(_NORMS, norms)
    return {"num_query_groups": said(_GROUPS) or fields["num_attention_heads"]}


_WIDTHS = Derived(
    ("ffn_hidden_size",),
    (_WIDTH,),
    lambda said, fields: {"ffn_hidden_size": said(_WIDTH) or 4 * whole(fields["hidden_size"], "hidden_size")},
    lambda model: {_WIDTH: model.ffn_size},
)


def _rules(norms: Mapping[str, str]) -> tuple[Rule, ...]:
    """`norms`: what our names of those of a layer begin with -> the names there."""
    return (
        Rule("embedding.word_embeddings.weight", ("transformer.word_embeddings.weight",), "padded_rows"),
        *(rule for ours, theirs in norms.items() for rule in with_bias(ours, f"{_LAYER}{theirs}.")),
        # Queries, keys and values lie group by group, as ours do.
        *with_bias(f"{ATTENTION}linear_qkv.", f"{_LAYER}self_attention.query_key_value.", _BIASES),
        *with_bias(f"{ATTENTION}linear_proj.", f"{_LAYER}self_attention.dense.", _BIASES),
        *with_bias(f"{MLP}linear_fc1.", f"{_LAYER}mlp.dense_h_to_4h.", _BIASES),
        *with_bias(f"{MLP}linear_fc2.", f"{_LAYER}mlp.dense_4h_to_h.", _BIASES),
        *with_bias("decoder.final_layernorm.", "transformer.ln_f."),
        Rule("output_layer.weight", ("lm_head.weight",), "padded_rows", "untie_embeddings_and_output_weights"),
    )


_OWN = {"norm_epsilon": "layer_norm_epsilon", "hidden_dropout": "hidden_dropout", _BIASES: "bias"}
FALCON = replace(
    LLAMA,
    name="Falcon with one norm",
    model_type="falcon",
    architecture="FalconForCausalLM",
    base="transformer.",
    rules=_rules({f"{DECODER}input_layernorm.": "input_layernorm"}),
    sizes={
        **{
            field: key
            for field, key in SIZES.items()
            if field not in ("num_query_groups", "kv_channels", "ffn_hidden_size")
        },
        **_OWN,
    },
    fixed={
        **{field: value for field, value in FIXED.items() if field != _BIASES},
        **{"normalization": "LayerNorm", "kv_channels": None, "parallel_residual": "one_norm"},
    },
    constants={"alibi": False, "parallel_attn": True},
    defaults={
        **{"layer_norm_epsilon": 1e-5, "attention_dropout": 0.0, "hidden_dropout": 0.0, "initializer_range": 0.02},
        **{"tie_word_embeddings": True, "max_position_embeddings": 2048, "bias": False, _NEW: False},
        _MULTI_QUERY: True,
    },
    activations=TABLES_GELU,
    activation_key="activation",
    derived=(Derived(("num_query_groups",), (_NEW, _MULTI_QUERY, _GROUPS, _NORMS), _groups, _keys_of_groups), _WIDTHS),
    aliases={"n_embed": "hidden_size"},
    # What published files say as well, and transformers does not read.
    ignored=frozenset({"apply_residual_connection_post_layernorm", "ff_factor"}),
    copies={"lm_head.weight": "transformer.word_embeddings.weight"},
)
FALCON_TWO_NORMS = replace(
    FALCON,
    name="Falcon with two norms",
    rules=_rules({f"{ATTENTION}linear_qkv.layer_norm_": "ln_attn", f"{MLP}linear_fc1.layer_norm_": "ln_mlp"}),
    fixed={**FALCON.fixed, "parallel_residual": "two_norms"},
    constants={**FALCON.constants, _NEW: True},
    derived=(
        Derived(
            ("num_query_groups",),
            (_GROUPS, _NORMS),
            _groups_of_two_norms,
            lambda model: {_GROUPS: model.query_groups, _NORMS: 2},
        ),
        _WIDTHS,
    ),
    # With the new architecture it is not read.
    ignored=FALCON.ignored | {_MULTI_QUERY},
    told_by=".ln_mlp.weight",
)
