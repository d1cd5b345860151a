"""Gemma 3 with images: its text model, which sees them by SigLIP's encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network, whole
from orchestrator.conversion.hugging_face.configuration import section
from orchestrator.conversion.hugging_face.families.gemma import GEMMA3
from orchestrator.conversion.hugging_face.families.image_models.llava import ENCODER_LAYERS, both
from orchestrator.conversion.hugging_face.vision import (
    SIGLIP,
    TEXT_KEYS,
    TIES,
    nested_config,
    to_vision,
    to_vision_config,
)
from orchestrator.conversion.weight_mapping import ImageConfig
from orchestrator.errors import UserError
from orchestrator.models.blocks.weights import Rule
from orchestrator.spec.model import ModelSpec

_TEXT, _TOWER, _PROJECTOR = "language_model.", "vision_tower.vision_model.", "multi_modal_projector."
_TOKENS = "mm_tokens_per_image"


def _to_config(model: ModelSpec, text: Mapping[str, Any]) -> dict[str, Any]:
    vision = model.image_encoder
    return {
        **nested_config(model, text),
        _TOKENS: vision.tokens_per_image,
        "vision_config": {**to_vision_config(vision, SIGLIP), "vision_use_head": False},
    }


def _to_vision(config: Mapping[str, Any]) -> dict[str, Any]:
    """The output of the last layer is taken."""
    tokens = whole(config.get(_TOKENS, 256), _TOKENS)
    return {"type": "gemma3", "pooled_tokens": tokens, **to_vision(section(config, "vision_config"), -1, SIGLIP)}


def _to_text(config: Mapping[str, Any]) -> dict[str, Any]:
    """Versions of transformers read one or the other of two keys."""
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
    return {**text, TIES: said[0] if said else True}


_SIGHT = (
    Rule("vision.patches", (f"{_TOWER}embeddings.patch_embedding.weight",)),
    Rule("vision.patch_bias", (f"{_TOWER}embeddings.patch_embedding.bias",)),
    Rule("vision.positions", (f"{_TOWER}embeddings.position_embedding.weight",)),
    *ENCODER_LAYERS,
    *both("vision.output_norm.", f"{_TOWER}post_layernorm."),
    Rule("vision.projector.norm.weight", (f"{_PROJECTOR}mm_soft_emb_norm.weight",)),
    Rule("vision.projector.linear.weight", (f"{_PROJECTOR}mm_input_projection_weight",), "transposed"),
)
_SIZES = {
    **{"vocab_size": 262208, "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8},
    "intermediate_size": 9216,
}
"""What transformers takes where text_config, of which published files say only what is unusual, leaves one out."""

GEMMA3_IMAGES = replace(
    GEMMA3,
    name="Gemma 3 with images",
    model_type="gemma3",
    architecture="Gemma3ForConditionalGeneration",
    base="",
    rules=(
        *_SIGHT,
        *(replace(rule, theirs=tuple(f"{_TEXT}{each}" for each in rule.theirs)) for rule in GEMMA3.rules),
    ),
    fixed={field: value for field, value in GEMMA3.fixed.items() if field != "vision"},
    constants={},
    # Tokens around an image, which only the processor reads.
    ignored=frozenset({"boi_token_index", "eoi_token_index", "boi_token_id", "eoi_token_id"}),
    buffers=(*GEMMA3.buffers, "embeddings.position_ids"),
    moved={
        "model.language_model.": f"{_TEXT}model.",
        "lm_head.": f"{_TEXT}lm_head.",
        "model.vision_tower.": "vision_tower.",
        "vision_tower.": _TOWER,
        "model.multi_modal_projector.": _PROJECTOR,
    },
    copies={f"{_TEXT}{copy}": f"{_TEXT}{of}" for copy, of in GEMMA3.copies.items()},
    decoder=replace(GEMMA3, defaults={**GEMMA3.defaults, **_SIZES}),
    images=ImageConfig(
        type="gemma3",
        keys=TEXT_KEYS | {_TOKENS, "vision_config"},
        to_text=_to_text,
        to_config=_to_config,
        to_vision=_to_vision,
        image_id="image_token_index",
        other_ids={},
        nests=True,
    ),
    left_out=(f"{_TOWER}head.",),
)
