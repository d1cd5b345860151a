"""Parameters of what encodes a decoder's images, all of it on the first pipeline stage."""

from __future__ import annotations

from orchestrator.models.blocks.base import Degrees, norm_parameters
from orchestrator.planning.parameters.layer import layer_parameters
from orchestrator.planning.vision import CHANNELS, encoder_model, projector_widths
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.native_resolution import FRAMES
from orchestrator.spec.vision import VisionSpec


def vision_parameters(model: ModelSpec, tp: int) -> int:
    """Those of the encoder and of the two matrices behind it on each of `tp` ranks; 0 where no images are seen."""
    if not model.has_vision:
        return 0
    inputs, inner, h = projector_widths(model)
    part = inner // tp
    projector = part * (inputs + 1) + h * part + h
    return encoder_parameters(model.image_encoder, tp) + projector


def encoder_parameters(vision: VisionSpec, tp: int) -> int:
    """Those of the encoder on each of `tp` ranks, which share out its layers' matrices and have all else whole: a
    matrix for patches, the token for the whole image, positions, and a norm before the layers; of images of any size
    the matrix, of two frames, and a norm behind the layers.
    """
    encoder, width = encoder_model(vision), vision.hidden_size
    if vision.is_native:
        beside = CHANNELS * FRAMES * vision.patch_size**2 * width + width
        return beside + vision.num_layers * layer_parameters(encoder, Degrees(tp))
    before = (CHANNELS * vision.patch_size**2 + 1 + vision.positions) * width + norm_parameters(encoder, width)
    return before + vision.num_layers * layer_parameters(encoder, Degrees(tp))
