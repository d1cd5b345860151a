"""Nemotron-H: state space layers (Mamba-2), attention without positions and MLPs, each a layer; in Nemotron 3 with
experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network, whole
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
from orchestrator.conversion.hugging_face.families.mixture_of_experts.mixtral import fixed_with_experts
from orchestrator.conversion.hugging_face.routing import FACTOR, NORMALIZED_SIGMOID, groups
from orchestrator.conversion.weight_mapping import DECODER, Derived, OneOf, Said
from orchestrator.models.blocks import registry as blocks
from orchestrator.models.blocks.weights import Rule
from orchestrator.models.layer_pattern import EXPERT_LETTER, layer_pattern
from orchestrator.models.layers import MIXERS
from orchestrator.spec.model import ModelSpec

_MIXER = f"{THEIR_LAYER}mixer."
_NORM = (f"{THEIR_LAYER}norm.weight",)
_PATTERN, _TYPES, _COUNT = "hybrid_override_pattern", "layers_block_type", "num_hidden_layers"
_SHARED, _EXPERT = "moe_shared_expert_intermediate_size", f"{MLP}experts.experts."
_LETTERS = {
    **{"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-", "moe": "E"},
    **{letter: letter for letter in MIXERS},
}
"""Of a layer's name in newer versions, which has changed once, and of its letter in older ones."""


def _layers(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    key = _TYPES if said(_TYPES) is not None else _PATTERN
    layers = said(key)
    if not isinstance(layers, Sequence) or not layers or not all(_is_known(each) for each in layers):
        raise no_network(key, layers)
    pattern = "".join(_LETTERS[each] for each in layers)
    if (EXPERT_LETTER in pattern) != ("num_experts" in fields):
        raise no_network(key, layers)
    if key == _TYPES and said(_PATTERN) not in (None, pattern):
        raise no_network(_PATTERN, said(_PATTERN))
    if (count := said(_COUNT)) not in (None, len(pattern)):
        raise no_network(_COUNT, count)
    return {"num_layers": len(pattern), "hybrid_override_pattern": pattern}


def _is_known(layer: Any) -> bool:
    return isinstance(layer, str) and layer in _LETTERS


def _pattern(model: ModelSpec) -> dict[str, Any]:
    return {_PATTERN: layer_pattern(model), _COUNT: model.num_layers}


_IGNORED = IGNORED | {
    *("moe_shared_expert_overlap", "mtp_layers_block_type", "mtp_hybrid_override_pattern", "num_logits_to_keep"),
    *("use_mamba_kernels", "mamba_ssm_cache_dtype", "expand", "num_query_groups", "rope_theta"),
}
"""What kernels do, layers of further tokens, a width that the heads say, another name of `num_key_value_heads`, which
published files have beside it, and the base of positions, of which there are none."""

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
        **{"num_local_experts": "n_routed_experts", "norm_eps": "layer_norm_epsilon"},
    },
    ignored=_IGNORED
    | {
        *("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "moe_latent_size", _SHARED),
        *("num_experts_per_tok", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor"),
    },
    written=WRITTEN,
    derived=(
        UNLIMITED,
        Derived(("hybrid_override_pattern", "num_layers"), (_PATTERN, _TYPES, _COUNT), _layers, _pattern),
    ),
)


_WIDTHS = {_SHARED: _SHARED, "ffn_hidden_size": "intermediate_size", "moe_ffn_hidden_size": "moe_intermediate_size"}
"""Of the expert that every token passes, of MLPs and of experts."""


def _widths(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    return {field: whole(said(key), key) for field, key in _WIDTHS.items()}


def _keys_of_widths(model: ModelSpec) -> dict[str, Any] | None:
    """None without an expert that every token passes, of which there is always one."""
    widths = (model.shared_expert_size, model.ffn_size, model.moe_ffn_size)
    return dict(zip(_WIDTHS.values(), widths, strict=True)) if all(widths) else None


NEMOTRON_H_WITH_EXPERTS = replace(
    NEMOTRON_H,
    name="Nemotron 3",
    rules=(
        *(rule for rule in NEMOTRON_H.rules if rule not in OUTPUT),
        *(
            replace(rule, only_in=blocks.EXPERTS.name)
            for rule in (
                Rule(f"{DECODER}pre_mlp_layernorm.weight", _NORM),
                Rule(f"{MLP}router.weight", (f"{_MIXER}gate.weight",)),
                Rule(f"{MLP}router.expert_bias", (f"{_MIXER}gate.e_score_correction_bias",), stays_fp32=True),
                Rule(f"{_EXPERT}linear_fc1.weight", (f"{_MIXER}experts.{{e}}.up_proj.weight",), of_experts=True),
                Rule(f"{_EXPERT}linear_fc2.weight", (f"{_MIXER}experts.{{e}}.down_proj.weight",), of_experts=True),
                Rule(f"{MLP}shared_experts.linear_fc1.weight", (f"{_MIXER}shared_experts.up_proj.weight",)),
                Rule(f"{MLP}shared_experts.linear_fc2.weight", (f"{_MIXER}shared_experts.down_proj.weight",)),
            )
        ),
        *OUTPUT,
    ),
    sizes={
        **{field: key for field, key in NEMOTRON_H.sizes.items() if field != "ffn_hidden_size"},
        **{"num_experts": "n_routed_experts", "moe_router_topk": "num_experts_per_tok"},
    },
    fixed={
        **fixed_with_experts(
            NEMOTRON_H.fixed,
            *("moe_router_topk_scaling_factor", "moe_shared_expert_intermediate_size", "moe_router_num_groups"),
        ),
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_load_balancing_type": OneOf(("none", "aux_loss", "seq_aux_loss", "global_aux_loss")),
    },
    constants={**NEMOTRON_H.constants, "n_shared_experts": 1, "moe_latent_size": None},
    # The router computes in fp32 there.
    imported={"moe_router_dtype": "fp32"},
    defaults={
        **NEMOTRON_H.defaults,
        **{"n_routed_experts": 8, "moe_intermediate_size": 7688, _SHARED: 7688, "num_experts_per_tok": 2},
        **{"routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": True},
    },
    ignored=_IGNORED,
    told_by=".mixer.gate.weight",
    derived=(
        *NEMOTRON_H.derived,
        Derived(tuple(_WIDTHS), tuple(_WIDTHS.values()), _widths, _keys_of_widths),
        *(FACTOR, NORMALIZED_SIGMOID, groups(2)),
    ),
)
