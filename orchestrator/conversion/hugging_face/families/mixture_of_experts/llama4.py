"""Llama 4, its text model: weighted inputs of experts, a shared expert, and layers without rotary positions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network, whole
from orchestrator.conversion.hugging_face.families.llama import (
    ATTENTION,
    DEFAULTS,
    DENSE,
    FIRST,
    FIXED,
    LLAMA,
    MLP,
    QKV,
    REST,
    SIZES,
    THEIR_ATTENTION,
    THEIR_MLP,
)
from orchestrator.conversion.hugging_face.families.llama_variants.smollm import NO_ROPE, rotated_layers
from orchestrator.conversion.hugging_face.families.mixture_of_experts.mixtral import fixed_with_experts, shared_expert
from orchestrator.conversion.hugging_face.images.vision import TEXT_KEYS, text_with_ties
from orchestrator.conversion.hugging_face.layer_types import GLOBAL, TYPES
from orchestrator.conversion.hugging_face.routing import STEPPED_LAYERS
from orchestrator.conversion.weight_mapping import DECODER, Derived, Said, TextPart
from orchestrator.models.blocks.registry import EXPERTS
from orchestrator.models.blocks.weights import Rule
from orchestrator.spec.model import ModelSpec

_FEED_FORWARD = "model.layers.{n}.feed_forward."
_EXPERT = f"{MLP}experts.experts."
_CHUNKED, _CHUNK = "chunked_attention", "attention_chunk_size"
_TUNING, _SCALE, _INTERVAL = "attn_temperature_tuning", "attn_scale", "floor_scale"
_ROUTED, _DENSE_WIDTH = "intermediate_size", "intermediate_size_mlp"
_USUAL_CHUNK = 8192
_TEXT = "language_model."

_ROTATED_LAYERS = replace(
    NO_ROPE,
    to_fields=lambda said, fields: NO_ROPE.to_fields(
        # An empty list says nothing.
        lambda key: (said(key) or None) if key == "no_rope_layers" else said(key),
        fields,
    ),
)


def _temperature(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    scale = said(_SCALE)
    if not said(_TUNING) or fields.get("no_rope_freq") is None or scale == 0:
        return {}
    if isinstance(scale, bool) or not isinstance(scale, int | float) or scale < 0:
        raise no_network(_SCALE, scale)
    return {
        "attention_temperature_scale": float(scale),
        "attention_temperature_interval": whole(said(_INTERVAL), _INTERVAL),
    }


def _keys_of_temperature(model: ModelSpec) -> dict[str, Any]:
    scale = model.attention_temperature_scale
    if scale is None:
        return {_TUNING: False}
    return {_TUNING: True, _SCALE: scale, _INTERVAL: model.attention_temperature_interval}


def _types(rotated: list[bool]) -> list[str]:
    return [_CHUNKED if each else GLOBAL for each in rotated]


def _chunks(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    chunk, types, layers = whole(said(_CHUNK), _CHUNK), said(TYPES), fields["num_layers"]
    if types == [GLOBAL] * layers:
        return {}
    if types not in (None, _types(rotated_layers(layers, fields.get("no_rope_freq")))):
        raise no_network(TYPES, types)
    return {"attention_chunk_size": chunk}


def _keys_of_chunks(model: ModelSpec) -> dict[str, Any]:
    chunk = model.attention_chunk_size
    if chunk is None:
        return {_CHUNK: _USUAL_CHUNK, TYPES: [GLOBAL] * model.num_layers}
    return {_CHUNK: chunk, TYPES: _types(rotated_layers(model.num_layers, model.no_rope_freq))}


def _widths(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    routed = said(_ROUTED)
    shared = {"moe_shared_expert_intermediate_size": routed}
    if fields["moe_layer_freq"] == 1:  # what a dense layer would have is nothing to this network
        return {"ffn_hidden_size": routed, **shared}
    return {"ffn_hidden_size": said(_DENSE_WIDTH), "moe_ffn_hidden_size": routed, **shared}


def _keys_of_widths(model: ModelSpec) -> dict[str, Any] | None:
    if model.shared_expert_size != model.moe_ffn_size:
        return None
    dense = {} if all(model.moe_layers) else {_DENSE_WIDTH: model.ffn_size}
    return {_ROUTED: model.moe_ffn_size, **dense}


LLAMA4 = replace(
    LLAMA,
    name="Llama 4",
    model_type="llama4_text",
    architecture="Llama4ForCausalLM",
    rules=(
        *FIRST,
        # Neighbours are rotated together.
        replace(QKV, transform="interleaved_qkv_of_pairs"),
        Rule(f"{ATTENTION}linear_proj.weight", (f"{THEIR_ATTENTION}o_proj.weight",)),
        *(
            replace(rule, theirs=tuple(name.replace(THEIR_MLP, _FEED_FORWARD) for name in rule.theirs))
            for rule in DENSE
        ),
        *(
            replace(rule, only_in=EXPERTS.name)
            for rule in (
                Rule(f"{DECODER}pre_mlp_layernorm.weight", ("model.layers.{n}.post_attention_layernorm.weight",)),
                Rule(f"{MLP}router.weight", (f"{_FEED_FORWARD}router.weight",)),
                *(
                    Rule(
                        f"{_EXPERT}{ours}.weight",
                        (f"{_FEED_FORWARD}experts.{theirs}",),
                        "transposed",
                        of_experts=True,
                        stacked=True,
                    )
                    for ours, theirs in (("linear_fc1", "gate_up_proj"), ("linear_fc2", "down_proj"))
                ),
                *shared_expert(f"{_FEED_FORWARD}shared_expert."),
            )
        ),
        *(rule for rule in REST if not rule.ours.startswith(DECODER)),
    ),
    sizes={
        **{field: key for field, key in SIZES.items() if field != "ffn_hidden_size"},
        "qk_l2_norm": "use_qk_norm",
        "num_experts": "num_local_experts",
        "moe_aux_loss_coeff": "router_aux_loss_coef",
    },
    derived=(
        _ROTATED_LAYERS,
        Derived(
            ("attention_temperature_scale", "attention_temperature_interval"),
            (_TUNING, _SCALE, _INTERVAL),
            _temperature,
            _keys_of_temperature,
        ),
        Derived(("attention_chunk_size",), (_CHUNK, TYPES), _chunks, _keys_of_chunks),
        STEPPED_LAYERS,
        Derived(
            ("moe_shared_expert_intermediate_size", "ffn_hidden_size", "moe_ffn_hidden_size"),
            (_ROUTED, _DENSE_WIDTH),
            _widths,
            _keys_of_widths,
        ),
    ),
    fixed={
        **fixed_with_experts(
            FIXED,
            *("no_rope_freq", "qk_l2_norm", "attention_temperature_scale", "attention_chunk_size"),
            *("moe_layer_freq", "moe_shared_expert_intermediate_size"),
        ),
        **{"moe_router_score_function": "sigmoid", "moe_router_topk": 1, "moe_apply_probs_on_input": True},
    },
    constants={"attention_bias": False, "num_experts_per_tok": 1},
    defaults={
        **{**DEFAULTS, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 500000},
        **{"max_position_embeddings": 131072, _ROUTED: 8192, _DENSE_WIDTH: 16384, "num_local_experts": 16},
        **{"router_aux_loss_coef": 0.001, "interleave_moe_layer_step": 1, "use_qk_norm": True},
        **{"no_rope_layer_interval": 4, _CHUNK: _USUAL_CHUNK, _TUNING: True, _SCALE: 0.1, _INTERVAL: 8192},
    },
    aliases={"num_experts": "num_local_experts"},
    # What the router adds noise by is read by nothing, and the last one is of the files of experts.
    ignored=frozenset({"router_jitter_noise", "for_llm_compressor"}),
)

_SIZES = {"vocab_size": 202048, "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40}
"""What transformers takes where text_config leaves one out."""
_OF_IMAGES = ("vision_model.", "multi_modal_projector.")
LLAMA4_PUBLISHED = replace(
    LLAMA4,
    model_type="llama4",
    moved={f"{_TEXT}model.": "model.", f"{_TEXT}lm_head.": "lm_head."},
    heads=(*LLAMA4.heads, *_OF_IMAGES),
    left_out=_OF_IMAGES,
    decoder=replace(LLAMA4, defaults={**LLAMA4.defaults, **_SIZES}),
    text_part=TextPart(
        partial(text_with_ties, default=False),
        TEXT_KEYS | {"boi_token_index", "eoi_token_index", "boi_token_id", "eoi_token_id"},
        left_out="vision_config",
    ),
)
"""As it is published, with an encoder of images; an export is of the text model."""
