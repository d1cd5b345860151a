"""What a config.json of Qwen2.5-VL says of images, and `model.vision`, one from the other. Needs no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from orchestrator.conversion.hugging_face.config_json import MOST_LAYERS, keys_read
from orchestrator.conversion.hugging_face.config_keys import WITHOUT_EFFECT, check_keys, no_network, section, whole
from orchestrator.conversion.hugging_face.images.vision import TIES
from orchestrator.conversion.weight_mapping import Family, ImageConfig
from orchestrator.errors import UserError
from orchestrator.models.image_encoders import IMAGE_ENCODERS
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.native_resolution import FRAMES, ROTARY_BASE, NativeResolutionSpec
from orchestrator.spec.vision import VisionSpec

SECTION = "mrope_section"
_ROTARY = ("rope_scaling", "rope_parameters")
_MODEL_TYPES = ("qwen2_5_vl", "qwen2_5_vl_vision")
_SIZES = {
    "num_layers": "depth",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_heads",
    "ffn_hidden_size": "intermediate_size",
    "patch_size": "patch_size",
}
"""Field of `model.vision` -> key of vision_config, where the value is the same."""
_NATIVE_SIZES = {"merge_size": "spatial_merge_size", "attention_window_size": "window_size"}
"""The same of `model.vision.native_resolution`."""
_FULL_LAYERS, _WIDTH_BEHIND, _ENCODER_ROTARY = "fullatt_block_indexes", "out_hidden_size", "rope_parameters"
_CONSTANTS = {"in_channels": 3, "in_chans": 3, "temporal_patch_size": FRAMES, "hidden_act": "silu"}
_IGNORED = frozenset({"tokens_per_second", "spatial_patch_size"})
_DEFAULTS = {
    **{"depth": 32, "hidden_size": 3584, "num_heads": 16, "intermediate_size": 3420, "patch_size": 14},
    **{"spatial_merge_size": 2, "window_size": 112, _FULL_LAYERS: [7, 15, 23, 31], _WIDTH_BEHIND: 3584},
}
"""What transformers takes for what a vision_config does not say."""
_ALIASES = {"num_hidden_layers": "depth", "num_attention_heads": "num_heads"}
"""Of vision_config, other names of keys, by which transformers knows them too."""
_HIDDEN_SIZE = 8192
"""Of the decoder, which transformers takes where config.json says none."""
_SECTIONS = (16, 24, 24)
"""Which transformers takes where config.json says none."""
_EPSILON = 1e-6
"""Of the encoder's norms, which config.json does not say."""
_TOKENS_OF_A_SIDE = 35
"""Of the largest image of an imported model, whose config.json says none: 1225 tokens, where transformers' processor
takes 1280 at most by default. Of models with few positions images take half of these at most."""
_START, _END = IMAGE_ENCODERS["qwen2.5"].around
_IMAGE_ID = "image_token_id"
_OTHER_IDS = {
    "<|video_pad|>": "video_token_id",
    _START: "vision_start_token_id",
    _END: "vision_end_token_id",
}


def _to_config(model: ModelSpec, text: Mapping[str, Any]) -> dict[str, Any]:
    """As published files have it: what is said of the decoder stands beside the rest."""
    said = {key: value for key, value in text.items() if key not in (SECTION, *_ROTARY)}
    return {
        **said,
        "rope_scaling": {"type": "mrope", SECTION: text[SECTION]},
        "vision_config": _to_vision_config(model.image_encoder, model.hidden_size),
    }


def _to_vision_config(vision: VisionSpec, hidden: int) -> dict[str, Any]:
    own = {"ffn_hidden_size": vision.ffn_size}
    return {
        "model_type": _MODEL_TYPES[0],
        **{key: own.get(field, getattr(vision, field)) for field, key in _SIZES.items()},
        **{key: getattr(vision.native, field) for field, key in _NATIVE_SIZES.items()},
        _FULL_LAYERS: list(vision.native.full_attention_layers),
        _WIDTH_BEHIND: hidden,
        **{"in_channels": 3, "in_chans": 3, "temporal_patch_size": FRAMES, "hidden_act": "silu"},
    }


def _to_text(config: Mapping[str, Any]) -> dict[str, Any]:
    """With the sections of its rotary positions under a key of their own."""
    inner = section(config, "text_config")
    outside = {"vision_config", "text_config", *_OUTSIDE}
    text = dict(inner) if inner else {key: value for key, value in config.items() if key not in outside}
    for ties in (config.get(TIES), text.get(TIES)):
        if not isinstance(ties, bool | None):
            raise no_network(TIES, ties)
    text[TIES] = bool(config.get(TIES) or text.get(TIES))
    for key in _ROTARY:
        said = text.get(key)
        if isinstance(said, dict) and SECTION in said:
            text[SECTION] = said[SECTION]
            kept = {name: value for name, value in said.items() if name not in (SECTION, "type", "rope_type")}
            kinds = [said.get(name) for name in ("type", "rope_type")]
            others = [str(kind) for kind in kinds if kind not in (None, "mrope", "default")]
            text[key] = {**kept, **({"rope_type": others[0]} if others else {})} or None
    return {SECTION: list(_SECTIONS), **text}


def _to_vision(config: Mapping[str, Any]) -> dict[str, Any]:
    said = section(config, "vision_config")
    if (kind := said.get("model_type", _MODEL_TYPES[0])) not in _MODEL_TYPES:
        raise UserError(
            f"config.json: vision_config is a {kind}; images are encoded by a {_MODEL_TYPES[0]} here",
            code="unsupported_image_encoder",
        )
    place = " of vision_config"
    for alias, key in _ALIASES.items():
        if said.get(alias, said.get(key)) != said.get(key, said.get(alias)):
            raise no_network(f"{alias} beside another {key}{place}", said[alias])
    said = {_ALIASES.get(key, key): value for key, value in said.items()}
    found = {**_DEFAULTS, **said}
    for key, wanted in _CONSTANTS.items():
        if found.get(key, wanted) != wanted:
            raise no_network(f"{key}{place}", found[key])
    rotary = section(found, _ENCODER_ROTARY)
    if (rotary.get("rope_theta", ROTARY_BASE), rotary.get("rope_type", "axial")) != (ROTARY_BASE, "axial"):
        raise no_network(f"{_ENCODER_ROTARY}{place}", rotary)
    if found[_WIDTH_BEHIND] != (hidden := _to_text(config).get("hidden_size", _HIDDEN_SIZE)):
        raise no_network(f"{_WIDTH_BEHIND}{place} beside a hidden_size of {json.dumps(hidden)}", found[_WIDTH_BEHIND])
    check_keys(said, KEYS_READ, "the image encoder of Qwen2.5-VL", place)
    layers = found[_FULL_LAYERS]
    if not isinstance(layers, list | tuple) or not all(type(layer) is int and layer >= 0 for layer in layers):
        raise no_network(f"{_FULL_LAYERS}{place}", layers)
    native: dict[str, Any] = {field: whole(found[key], f"{key}{place}") for field, key in _NATIVE_SIZES.items()}
    native["full_attention_layers"] = tuple(layers)
    known, own = VisionSpec.model_fields, NativeResolutionSpec.model_fields
    fields: dict[str, Any] = {field: whole(found[key], f"{key}{place}") for field, key in _SIZES.items()}
    if fields["num_layers"] > MOST_LAYERS:
        raise no_network(f"depth{place}", found["depth"])
    fields |= {"norm_epsilon": _EPSILON, "image_size": _side(config) * fields["patch_size"] * native["merge_size"]}
    smallest = own["smallest_image_size"].default
    native["smallest_image_size"] = min(smallest, fields["image_size"])
    beyond = {field: value for field, value in native.items() if value != own[field].default}
    return {
        "type": "qwen2.5",
        **{field: value for field, value in fields.items() if value != known[field].default},
        **({"native_resolution": beyond} if beyond else {}),
    }


def _side(config: Mapping[str, Any]) -> int:
    """Tokens of a side of the largest image."""
    positions = _to_text(config).get("max_position_embeddings")
    most = math.isqrt(positions // 2) if isinstance(positions, int) and positions > 1 else _TOKENS_OF_A_SIDE
    return min(_TOKENS_OF_A_SIDE, max(most, 1))


KEYS_READ = frozenset(
    {
        *_SIZES.values(),
        *_NATIVE_SIZES.values(),
        *_CONSTANTS,
        *_IGNORED,
        *_ALIASES,
        _FULL_LAYERS,
        _WIDTH_BEHIND,
        _ENCODER_ROTARY,
    }
)
"""Of vision_config."""
_OUTSIDE = frozenset({_IMAGE_ID, *_OTHER_IDS.values(), "vision_token_id"})
"""Keys beside those of the decoder."""


def images_of(decoder: Family) -> ImageConfig:
    """Beside a decoder, whose keys stand among those of images in published files."""
    own = frozenset({"text_config", "vision_config", "tie_word_embeddings", *_OUTSIDE}) - WITHOUT_EFFECT
    return ImageConfig(
        type="qwen2.5",
        keys=own | keys_read(decoder) | decoder.ignored,
        to_text=_to_text,
        to_config=_to_config,
        to_vision=_to_vision,
        image_id=_IMAGE_ID,
        other_ids=_OTHER_IDS,
        nests=False,
    )
