"""What a config.json says of the encoder of images, and `model.vision`, one from the other. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from orchestrator.conversion.hugging_face.config_json import MOST_LAYERS
from orchestrator.conversion.hugging_face.config_keys import check_keys, no_network, section
from orchestrator.conversion.weight_mapping import ImageConfig
from orchestrator.errors import UserError
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.vision import VisionSpec

_SIZES = {
    "image_size": "image_size",
    "patch_size": "patch_size",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "ffn_hidden_size": "intermediate_size",
    "norm_epsilon": "layer_norm_eps",
}
"""Field of `model.vision` -> key of vision_config, where the value is the same."""
_ACTIVATIONS = {
    "quick_gelu": ("quick_gelu",),
    "gelu": ("gelu",),
    "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new"),
}
"""Our activation -> its names there; the first is written."""
_CONSTANTS = {"num_channels": 3, "attention_dropout": 0.0}
KEYS_READ = frozenset({*_SIZES.values(), *_CONSTANTS, "num_hidden_layers", "hidden_act"})


class EncoderConfig(NamedTuple):
    """A configuration of transformers that a vision_config is."""

    model_type: str
    name: str
    """For people."""
    defaults: Mapping[str, Any]
    """What transformers takes for what a vision_config does not say."""
    ignored: frozenset[str]
    """Keys of vision_config that do nothing to the encoder."""


CLIP = EncoderConfig(
    "clip_vision_model",
    "CLIP's encoder of images",
    {
        **{"image_size": 224, "patch_size": 32, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
        **{"intermediate_size": 3072, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu", **_CONSTANTS},
    },
    frozenset({"vocab_size", "projection_dim"}),
)
SIGLIP = EncoderConfig(
    "siglip_vision_model",
    "SigLIP's encoder of images",
    {
        **{"image_size": 224, "patch_size": 16, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
        **{"intermediate_size": 3072, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh", **_CONSTANTS},
    },
    # Of the head, whose weights are left out: what is projected is what the norm behind the layers gives.
    frozenset({"vision_use_head"}),
)
_WITHOUT = {
    **{"image_size": 336, "patch_size": 14, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
    "intermediate_size": 4096,
}
"""What transformers takes for LLaVA where there is no vision_config."""


def to_vision_config(vision: VisionSpec, encoder: EncoderConfig) -> dict[str, Any]:
    """`vision_config` of an encoder all of whose layers are computed."""
    own = {"ffn_hidden_size": vision.ffn_size}
    return {
        "model_type": encoder.model_type,
        "num_hidden_layers": vision.num_layers,
        "hidden_act": _ACTIVATIONS[vision.activation][0],
        **{key: own.get(field, getattr(vision, field)) for field, key in _SIZES.items()},
        **_CONSTANTS,
    }


def to_vision(said: Mapping[str, Any], layer: Any, encoder: EncoderConfig) -> dict[str, Any]:
    """`model.vision` of a vision_config, and the layer whose output is taken, counted as in `hidden_states` there: 0 is
    what goes into the first. Raises UserError with what we cannot represent.
    """
    kind = said.get("model_type", encoder.model_type)
    if kind != encoder.model_type:
        raise UserError(
            f"config.json: vision_config is a {kind}; images are encoded by a {encoder.model_type} here",
            code="unsupported_image_encoder",
        )
    config = {**encoder.defaults, **said}
    for key, wanted in _CONSTANTS.items():
        if config[key] != wanted:
            raise no_network(f"{key} of vision_config", config[key])
    for key in ("image_size", "patch_size"):
        if not isinstance(config[key], int):
            raise UserError(
                f"config.json: {key} of vision_config is {json.dumps(config[key])}; images are square here",
                code="images_not_square",
            )
    fields = {field: config[key] for field, key in _SIZES.items()}
    fields |= {
        "activation": _activation(config["hidden_act"]),
        "num_layers": _layers(config["num_hidden_layers"], layer),
    }
    check_keys(said, KEYS_READ | encoder.ignored, encoder.name, " of vision_config")
    known = VisionSpec.model_fields
    return {field: value for field, value in fields.items() if value != known[field].default}


def _activation(value: Any) -> str:
    for ours, theirs in _ACTIVATIONS.items():
        if value in theirs:
            return ours
    known = ", ".join(name for theirs in _ACTIVATIONS.values() for name in theirs)
    raise UserError(
        f"config.json: hidden_act of vision_config is {value!r}; imported are {known}", code="unsupported_config_value"
    )


def _layers(count: Any, layer: Any) -> int:
    """How many of the encoder's layers are computed."""
    if type(layer) is not int:
        said = json.dumps(layer)
        raise UserError(
            f"config.json: vision_feature_layer is {said}; the output of one layer is taken here",
            code="unsupported_vision_feature_layer",
        )
    if type(count) is not int or count > MOST_LAYERS:
        raise UserError(
            f"config.json: num_hidden_layers of vision_config is {json.dumps(count)}", code="unsupported_config_value"
        )
    layers = layer if layer >= 0 else count + 1 + layer
    if not 1 <= layers <= count:
        raise UserError(
            f"config.json: vision_feature_layer {layer} is the output of none of the {count} layers",
            code="unsupported_vision_feature_layer",
        )
    return layers


TIES, TEXT_KEYS = "tie_word_embeddings", frozenset({"text_config", "tie_word_embeddings"})


def nested_config(model: ModelSpec, text: Mapping[str, Any]) -> dict[str, Any]:
    """The decoder's part of a config.json that has it in `text_config`."""
    return {TIES: text[TIES], "text_config": text}


def text_with_ties(config: Mapping[str, Any], default: bool) -> dict[str, Any]:
    """`text_config`, and whether its embeddings are tied: versions of transformers read one or the other of two keys.
    Raises UserError where these differ.
    """
    text = section(config, "text_config")
    said = [each[TIES] for each in (config, text) if each.get(TIES) is not None]
    for value in said:
        if not isinstance(value, bool):
            raise no_network(TIES, value)
    if len(set(said)) > 1:
        values = " and ".join(map(json.dumps, said))
        raise UserError(
            f"config.json: {TIES} and {TIES} of text_config are the same, and say {values}: remove one",
            code="conflicting_config_values",
        )
    return {**text, TIES: said[0] if said else default}


def _llava_text(config: Mapping[str, Any]) -> dict[str, Any]:
    text = section(config, "text_config")
    return {**text, TIES: any(each.get(TIES) for each in (config, text))}


def _llava_config(model: ModelSpec, text: Mapping[str, Any]) -> dict[str, Any]:
    vision = model.image_encoder
    return {
        **nested_config(model, text),
        "vision_feature_layer": -1,
        "image_seq_length": vision.tokens_per_image,
        "vision_config": to_vision_config(vision, CLIP),
    }


def _llava_vision(config: Mapping[str, Any]) -> dict[str, Any]:
    said = section(config, "vision_config") or _WITHOUT
    return to_vision(said, config.get("vision_feature_layer", -2), CLIP)


LLAVA_IMAGES = ImageConfig(
    type="llava",
    keys=TEXT_KEYS | {"vision_config", "vision_feature_layer"},
    to_text=_llava_text,
    to_config=_llava_config,
    to_vision=_llava_vision,
    image_id="image_token_index",
    other_ids={},
    nests=True,
)
"""Of LLaVA."""
