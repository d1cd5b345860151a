"""What a config.json of LLaVA says of images, and `model.vision`, one from the other. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import check_keys, no_network
from orchestrator.errors import UserError
from orchestrator.spec.vision import VisionSpec

_MODEL_TYPE = "clip_vision_model"
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
IGNORED = frozenset({"vocab_size", "projection_dim"})
"""Keys of vision_config that do nothing to the encoder."""
_DEFAULTS = {
    **{"image_size": 224, "patch_size": 32, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    **{"intermediate_size": 3072, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu", **_CONSTANTS},
}
"""What transformers takes for what a vision_config does not say."""
_WITHOUT = {
    **{"image_size": 336, "patch_size": 14, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
    "intermediate_size": 4096,
}
"""What it takes where there is no vision_config."""


def to_vision_config(vision: VisionSpec) -> dict[str, Any]:
    """`vision_config` of an encoder all of whose layers are computed."""
    own = {"ffn_hidden_size": vision.ffn_size}
    return {
        "model_type": _MODEL_TYPE,
        "num_hidden_layers": vision.num_layers,
        "hidden_act": _ACTIVATIONS[vision.activation][0],
        **{key: own.get(field, getattr(vision, field)) for field, key in _SIZES.items()},
        **_CONSTANTS,
    }


def to_vision(said: Mapping[str, Any], layer: Any) -> dict[str, Any]:
    """`model.vision` of a vision_config, empty where there is none, and the layer whose output is taken, counted as in
    `hidden_states` there: 0 is what goes into the first. Raises UserError with what we cannot represent.
    """
    kind = said.get("model_type", _MODEL_TYPE)
    if kind != _MODEL_TYPE:
        raise UserError(
            f"config.json: vision_config is a {kind}; images are encoded by a {_MODEL_TYPE} here",
            code="unsupported_image_encoder",
        )
    config = {**_DEFAULTS, **(said or _WITHOUT)}
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
    check_keys(said, KEYS_READ | IGNORED, "CLIP's encoder of images", " of vision_config")
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
    if type(count) is not int:
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
