"""Nemotron-H: state space layers (Mamba-2), attention without positions and MLPs, each a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network
from orchestrator.conversion.hugging_face.families.hybrids.mamba2 import (
    CONSTANTS,
    EMBEDDING,
    FIXED,
    IGNORED,
    MAMBA2,
    OUTPUT,
    STATE_SPACE,
    THEIR_LAYER,
    UNLIMITED,
    WRITTEN,
)
from orchestrator.conversion.hugging_face.families.llama import ATTENTION, MLP, QKV
from orchestrator.conversion.weight_mapping import Derived, Said
from orchestrator.models.blocks import registry as blocks
from orchestrator.models.blocks.weights import Rule
from orchestrator.models.layer_pattern import layer_pattern
from orchestrator.models.layers import MIXERS
from orchestrator.spec.model import ModelSpec

_MIXER = f"{THEIR_LAYER}mixer."
_NORM = (f"{THEIR_LAYER}norm.weight",)
_PATTERN, _TYPES, _COUNT = "hybrid_override_pattern", "layers_block_type", "num_hidden_layers"
_LETTERS = {
    **{"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-"},
    **{letter: letter for letter in MIXERS},
}
"""Of a layer's name in newer versions, which has changed once, and of its letter in older ones."""


def _layers(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    key = _TYPES if said(_TYPES) is not None else _PATTERN
    layers = said(key)
    if not isinstance(layers, Sequence) or not layers or not all(_is_known(each) for each in layers):
        raise no_network(key, layers)
    pattern = "".join(_LETTERS[each] for each in layers)
    if key == _TYPES and said(_PATTERN) not in (None, pattern):
        raise no_network(_PATTERN, said(_PATTERN))
    if (count := said(_COUNT)) not in (None, len(pattern)):
        raise no_network(_COUNT, count)
    return {"num_layers": len(pattern), "hybrid_override_pattern": pattern}


def _is_known(layer: Any) -> bool:
    return isinstance(layer, str) and layer in _LETTERS


def _pattern(model: ModelSpec) -> dict[str, Any]:
    return {_PATTERN: layer_pattern(model), _COUNT: model.num_layers}


NEMOTRON_H = replace(
    MAMBA2,
    name="Nemotron-H",
    model_type="nemotron_h",
    architecture="NemotronHForCausalLM",
    rules=(
        EMBEDDING,
        *STATE_SPACE,
        Rule(f"{ATTENTION}linear_qkv.layer_norm_weight", _NORM, only_in=blocks.GROUPED_QUERY.name),
        replace(QKV, theirs=tuple(f"{_MIXER}{part}_proj.weight" for part in "qkv"), only_in=blocks.GROUPED_QUERY.name),
        Rule(f"{ATTENTION}linear_proj.weight", (f"{_MIXER}o_proj.weight",), only_in=blocks.GROUPED_QUERY.name),
        Rule(f"{MLP}linear_fc1.layer_norm_weight", _NORM, only_in=blocks.MLP.name),
        Rule(f"{MLP}linear_fc1.weight", (f"{_MIXER}up_proj.weight",), only_in=blocks.MLP.name),
        Rule(f"{MLP}linear_fc2.weight", (f"{_MIXER}down_proj.weight",), only_in=blocks.MLP.name),
        *OUTPUT,
    ),
    sizes={
        **{"hidden_size": "hidden_size", "num_attention_heads": "num_attention_heads"},
        **{
            "num_query_groups": "num_key_value_heads",
            "kv_channels": "head_dim",
            "ffn_hidden_size": "intermediate_size",
        },
        **{"mamba_num_heads": "mamba_num_heads", "mamba_head_dim": "mamba_head_dim"},
        **{"mamba_state_dim": "ssm_state_size", "mamba_num_groups": "n_groups"},
        **{"attention_dropout": "attention_dropout", "hidden_dropout": "hidden_dropout"},
        "init_method_std": "initializer_range",
    },
    fixed={**FIXED, "untie_embeddings_and_output_weights": True},
    constants={
        **CONSTANTS,
        **{"attention_bias": False, "mlp_bias": False, "mamba_proj_bias": False, "sliding_window": None},
        **{"mamba_hidden_act": "silu", "num_nextn_predict_layers": 0},
        "tie_word_embeddings": False,  # with true, transformers still has an output layer of its own
    },
    defaults={
        **{"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
        **{"intermediate_size": 21504, "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128},
        **{"n_groups": 8, "attention_dropout": 0.0, "hidden_dropout": 0.0, "initializer_range": 0.02},
        **{"tie_word_embeddings": False, "vocab_size": 131072, "max_position_embeddings": 4096},
    },
    activations={
        **{"squared_relu": ("relu2",), "relu": ("relu",), "gelu": ("gelu",)},
        "gelu_tanh": ("gelu_pytorch_tanh",),
    },
    activation_key="mlp_hidden_act",
    positions="max_position_embeddings",
    imported={},
    moved={"model.": "backbone."},
    aliases={
        **{"attention_head_dim": "head_dim", "rms_norm_eps": "layer_norm_epsilon", "layer_types": _TYPES},
        "num_local_experts": "n_routed_experts",
    },
    # Of layers with experts and of further tokens; what kernels do; a width that the heads say; another name of
    # `num_key_value_heads`, which published files have beside it.
    ignored=IGNORED
    | {
        *("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "moe_latent_size"),
        *("moe_shared_expert_intermediate_size", "moe_shared_expert_overlap", "num_experts_per_tok", "n_group"),
        *("topk_group", "norm_topk_prob", "routed_scaling_factor", "mtp_layers_block_type", "expand"),
        *("mtp_hybrid_override_pattern", "num_logits_to_keep", "use_mamba_kernels", "mamba_ssm_cache_dtype"),
        "num_query_groups",
    },
    written=WRITTEN,
    derived=(
        UNLIMITED,
        Derived(("hybrid_override_pattern", "num_layers"), (_PATTERN, _TYPES, _COUNT), _layers, _pattern),
    ),
)
