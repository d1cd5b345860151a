"""The shapes of the weights of an encoder of images of any size."""

from __future__ import annotations

from orchestrator.conversion.weight_mapping import VISION
from orchestrator.spec.native_resolution import FRAMES
from orchestrator.spec.vision import VisionSpec


def shape_of_native(key: str, vision: VisionSpec, hidden: int) -> tuple[int, ...]:
    """Of a key of the encoder, or of the matrices behind it, which lead to the decoder's width."""
    width, side, group = vision.hidden_size, vision.patch_size, vision.hidden_size * vision.merge_size**2
    if "norm" in key:
        return (width,)
    if key == "vision.patches":
        return (width, 3, FRAMES, side, side)
    name, _, kind = key.removeprefix(VISION).rpartition(".")
    matrix = {
        "self_attention.linear_qkv": (3 * width, width),
        "self_attention.linear_proj": (width, width),
        "mlp.linear_fc1": (2 * vision.ffn_size, width),
        "mlp.linear_fc2": (width, vision.ffn_size),
        "vision.projector.linear_fc1": (group, group),
        "vision.projector.linear_fc2": (hidden, group),
    }[name]
    return matrix if kind == "weight" else matrix[:1]
