"""Qwen2.5-VL: a Qwen 2 with positions in time, by row and by column, that sees images of any size."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.conversion.hugging_face.families.qwen import QWEN2
from orchestrator.conversion.hugging_face.images.native_resolution import SECTION, images_of
from orchestrator.conversion.weight_mapping import VISION, Derived
from orchestrator.models.blocks.weights import Rule
from orchestrator.spec.model import ModelSpec

_TOWER = "visual."
_LAYER = f"{_TOWER}blocks.{{n}}."
_KINDS = ("weight", "bias")


def _both(ours: str, *theirs: str, transform: str = "same") -> tuple[Rule, ...]:
    """A matrix and its bias."""
    return tuple(Rule(f"{ours}.{kind}", tuple(f"{each}.{kind}" for each in theirs), transform) for kind in _KINDS)


_SIGHT = (
    Rule("vision.patches", (f"{_TOWER}patch_embed.proj.weight",)),
    Rule(f"{VISION}self_attention.linear_qkv.layer_norm_weight", (f"{_LAYER}norm1.weight",)),
    *_both(f"{VISION}self_attention.linear_qkv", f"{_LAYER}attn.qkv", transform="joined_vision_qkv"),
    *_both(f"{VISION}self_attention.linear_proj", f"{_LAYER}attn.proj"),
    Rule(f"{VISION}mlp.linear_fc1.layer_norm_weight", (f"{_LAYER}norm2.weight",)),
    *_both(f"{VISION}mlp.linear_fc1", f"{_LAYER}mlp.gate_proj", f"{_LAYER}mlp.up_proj", transform="joined_halves"),
    *_both(f"{VISION}mlp.linear_fc2", f"{_LAYER}mlp.down_proj"),
    Rule("vision.merger_norm.weight", (f"{_TOWER}merger.ln_q.weight",)),
    *_both("vision.projector.linear_fc1", f"{_TOWER}merger.mlp.0"),
    *_both("vision.projector.linear_fc2", f"{_TOWER}merger.mlp.2"),
)


def _needed(model: ModelSpec) -> dict[str, object] | None:
    """Every one has sections, which the decoder's table reads."""
    return None if model.mrope_section is None else {}


_FIXED = {field: value for field, value in QWEN2.fixed.items() if field not in (SECTION, "vision")}
_TEXT = replace(
    QWEN2,
    name="Qwen2.5-VL's decoder",
    model_type="qwen2_5_vl_text",
    fixed=_FIXED,
    sizes={**QWEN2.sizes, SECTION: SECTION},
    defaults={
        **QWEN2.defaults,
        **{"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80},
        **{"num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1_000_000},
        "max_window_layers": 80,
    },
)
QWEN2_5_VL = replace(
    QWEN2,
    name="Qwen2.5-VL",
    model_type="qwen2_5_vl",
    architecture="Qwen2_5_VLForConditionalGeneration",
    base="",
    rules=(*_SIGHT, *QWEN2.rules),
    fixed=_FIXED,
    derived=(Derived((SECTION,), ("rope_scaling",), lambda said, fields: {}, _needed),),
    moved={"model.language_model.": "model.", "model.visual.": _TOWER},
    decoder=_TEXT,
    images=images_of(_TEXT),
)
