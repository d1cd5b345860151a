"""LLaVA: a decoder that sees images with CLIP's encoder, up to the layer whose output it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.families.llama import LLAMA
from orchestrator.conversion.hugging_face.families.mistral import MISTRAL
from orchestrator.conversion.hugging_face.families.qwen import QWEN2
from orchestrator.conversion.hugging_face.images.vision import LLAVA_IMAGES
from orchestrator.conversion.weight_mapping import VISION, Family
from orchestrator.models.blocks.weights import Rule

TEXT, TOWER, PROJECTOR = "language_model.", "vision_tower.vision_model.", "multi_modal_projector."
_LAYER = f"{TOWER}encoder.layers.{{n}}."
_KINDS = ("weight", "bias")


def both(ours: str, theirs: str) -> tuple[Rule, ...]:
    """A matrix or a norm, and its bias."""
    return tuple(Rule(f"{ours}{kind}", (f"{theirs}{kind}",)) for kind in _KINDS)


ENCODER_LAYERS = (
    *both(f"{VISION}self_attention.linear_qkv.layer_norm_", f"{_LAYER}layer_norm1."),
    *(
        Rule(
            f"{VISION}self_attention.linear_qkv.{kind}",
            tuple(f"{_LAYER}self_attn.{part}_proj.{kind}" for part in "qkv"),
            "interleaved_vision_qkv",
        )
        for kind in _KINDS
    ),
    *both(f"{VISION}self_attention.linear_proj.", f"{_LAYER}self_attn.out_proj."),
    *both(f"{VISION}mlp.linear_fc1.layer_norm_", f"{_LAYER}layer_norm2."),
    *both(f"{VISION}mlp.linear_fc1.", f"{_LAYER}mlp.fc1."),
    *both(f"{VISION}mlp.linear_fc2.", f"{_LAYER}mlp.fc2."),
)
"""Layers of CLIP's encoder, and of SigLIP's, whose names are the same."""


def beside_decoder(decoder: Family, sight: tuple[Rule, ...], sizes: Mapping[str, Any], **fields: Any) -> Family:
    """A decoder whose weights stand under names of their own beside those of an encoder (`sight`), as newer and older
    versions of transformers have them. `sizes` are the decoder's that transformers takes where text_config leaves them
    out; `fields` are the family's others.
    """
    text = (replace(rule, theirs=tuple(f"{TEXT}{each}" for each in rule.theirs)) for rule in decoder.rules)
    common: dict[str, Any] = {
        "base": "",
        "rules": (*sight, *text),
        "fixed": {field: value for field, value in decoder.fixed.items() if field != "vision"},
        "buffers": (*decoder.buffers, "embeddings.position_ids"),
        "moved": {
            "model.language_model.": f"{TEXT}model.",
            "lm_head.": f"{TEXT}lm_head.",
            "model.vision_tower.": "vision_tower.",
            "vision_tower.": TOWER,
            "model.multi_modal_projector.": PROJECTOR,
        },
        "copies": {f"{TEXT}{copy}": f"{TEXT}{of}" for copy, of in decoder.copies.items()},
        "decoder": replace(decoder, defaults={**decoder.defaults, **sizes}),
    }
    return replace(decoder, **common, **fields)


_SIGHT = (
    Rule("vision.patches", (f"{TOWER}embeddings.patch_embedding.weight",)),
    Rule("vision.class_token", (f"{TOWER}embeddings.class_embedding",)),
    Rule("vision.positions", (f"{TOWER}embeddings.position_embedding.weight",)),
    *both("vision.input_norm.", f"{TOWER}pre_layrnorm."),
    *ENCODER_LAYERS,
    *both("vision.projector.linear_fc1.", f"{PROJECTOR}linear_1."),
    *both("vision.projector.linear_fc2.", f"{PROJECTOR}linear_2."),
)


def _seeing(name: str, decoder: Family, sizes: Mapping[str, Any]) -> Family:
    """A decoder's family with images. `sizes`: what transformers takes where text_config, of which versions of it write
    only what is unusual, leaves one out.
    """
    return beside_decoder(
        decoder,
        _SIGHT,
        sizes,
        name=name,
        model_type="llava",
        architecture="LlavaForConditionalGeneration",
        constants={
            "projector_hidden_act": "gelu",
            "multimodal_projector_bias": True,
            "vision_feature_select_strategy": "default",
        },
        ignored=frozenset({"image_seq_length", "vocab_size"}),
        images=LLAVA_IMAGES,
        unused={f"{TOWER}post_layernorm.weight": 1.0, f"{TOWER}post_layernorm.bias": 0.0},
        longer=f"{TOWER}encoder.layers.",
    )


_SIZES = {
    **{"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32},
    "intermediate_size": 11008,
}
LLAVA = _seeing("LLaVA", LLAMA, _SIZES)
LLAVA_MISTRAL = _seeing("LLaVA over Mistral", MISTRAL, {**_SIZES, "intermediate_size": 14336})
LLAVA_QWEN2 = _seeing("LLaVA over Qwen 2", QWEN2, {**_SIZES, "vocab_size": 151936, "intermediate_size": 22016})
