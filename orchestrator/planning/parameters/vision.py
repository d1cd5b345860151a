"""Parameters of what encodes a decoder's images, all of it on the first pipeline stage."""

from __future__ import annotations

from orchestrator.models.blocks.base import Degrees, Matrix, norm_parameters
from orchestrator.planning.parameters.layer import layer_parameters
from orchestrator.planning.vision import CHANNELS, encoder_model, projector_widths
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.native_resolution import FRAMES
from orchestrator.spec.vision import VisionSpec


def vision_parameters(model: ModelSpec, tp: int) -> int:
    """Those of the encoder and of what projects its output on each of `tp` ranks; 0 where no images are seen."""
    if not model.has_vision:
        return 0
    vision = model.image_encoder
    norm = vision.hidden_size if vision.kind.pools else 0
    projector = sum(matrix.parameters(Degrees(tp)) for matrix in projector_matrices(model))
    return encoder_parameters(vision, tp) + norm + projector


def projector_matrices(model: ModelSpec) -> tuple[Matrix, ...]:
    """What projects the encoder's output to the decoder's embeddings: a matrix that every rank has whole, or two that
    tensor-parallel ranks share out.
    """
    inputs, inner, h = projector_widths(model)
    if model.image_encoder.kind.pools:
        return (Matrix("linear", inputs, h, "replicated", has_bias=False),)
    return (
        Matrix("linear_fc1", inputs, inner, "column", has_bias=True),
        Matrix("linear_fc2", inner, h, "row", has_bias=True),
    )


def encoder_parameters(vision: VisionSpec, tp: int) -> int:
    """Those of the encoder on each of `tp` ranks, which share out its layers' matrices and have all else whole: a
    matrix for patches with a bias or without one, the token for the whole image where there is one, positions, and a
    norm before the layers or behind them. Patches of images of any size have two frames, and rotary positions.
    """
    encoder, width, kind = encoder_model(vision), vision.hidden_size, vision.kind
    frames, learned = (FRAMES, 0) if kind.keeps_shape else (1, vision.positions)
    vectors = kind.class_token + kind.patch_bias + learned
    beside = (CHANNELS * frames * vision.patch_size**2 + vectors) * width + norm_parameters(encoder, width)
    return beside + vision.num_layers * layer_parameters(encoder, Degrees(tp))
