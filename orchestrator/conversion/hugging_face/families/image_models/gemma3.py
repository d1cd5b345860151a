"""Gemma 3 with images: its text model, which sees them by SigLIP's encoder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import section, whole
from orchestrator.conversion.hugging_face.families.gemma import GEMMA3
from orchestrator.conversion.hugging_face.families.image_models.llava import (
    ENCODER_LAYERS,
    PROJECTOR,
    TOWER,
    beside_decoder,
    both,
)
from orchestrator.conversion.hugging_face.images.vision import (
    SIGLIP,
    TEXT_KEYS,
    nested_config,
    text_with_ties,
    to_vision,
    to_vision_config,
)
from orchestrator.conversion.weight_mapping import ImageConfig
from orchestrator.models.blocks.weights import Rule
from orchestrator.spec.model import ModelSpec

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


_SIGHT = (
    Rule("vision.patches", (f"{TOWER}embeddings.patch_embedding.weight",)),
    Rule("vision.patch_bias", (f"{TOWER}embeddings.patch_embedding.bias",)),
    Rule("vision.positions", (f"{TOWER}embeddings.position_embedding.weight",)),
    *ENCODER_LAYERS,
    *both("vision.output_norm.", f"{TOWER}post_layernorm."),
    Rule("vision.projector.norm.weight", (f"{PROJECTOR}mm_soft_emb_norm.weight",)),
    Rule("vision.projector.linear.weight", (f"{PROJECTOR}mm_input_projection_weight",), "transposed"),
)
_SIZES = {
    **{"vocab_size": 262208, "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8},
    "intermediate_size": 9216,
}
"""What transformers takes where text_config, of which published files say only what is unusual, leaves one out."""

GEMMA3_IMAGES = beside_decoder(
    GEMMA3,
    _SIGHT,
    _SIZES,
    name="Gemma 3 with images",
    model_type="gemma3",
    architecture="Gemma3ForConditionalGeneration",
    constants={},
    # Tokens around an image, which only the processor reads.
    ignored=frozenset({"boi_token_index", "eoi_token_index", "boi_token_id", "eoi_token_id"}),
    images=ImageConfig(
        type="gemma3",
        keys=TEXT_KEYS | {_TOKENS, "vision_config"},
        to_text=partial(text_with_ties, default=True),
        to_config=_to_config,
        to_vision=_to_vision,
        image_id="image_token_index",
        other_ids={},
        nests=True,
    ),
    left_out=(f"{TOWER}head.",),
)
