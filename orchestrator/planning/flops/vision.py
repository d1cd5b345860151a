"""Model FLOPs of encoding images: forward alone of a frozen encoder, and no gradient of what lies before its weights.

Each sequence is counted with as many images as it may have, since it takes as long with fewer.
"""

from __future__ import annotations

from orchestrator.planning.flops.layers import layers_flops
from orchestrator.planning.vision import CHANNELS, encoder_model
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.vision import VisionSpec

_OF_IMAGES = "; I images of n patches in a sequence, of 3*p*p numbers each, N = n + 1, L' layers of width v and f'"
_OF_POOLED = (
    "; I images of n patches in a sequence, of 3*p*p numbers each, m tokens of means, L' layers of width v and f'"
)
_TRAINED = f"T/s * I * (12*n*p*p*v + L'*(12*N*v*(2*v+f') + 12*v*N*N) + 6*n*(v*h + h*h)){_OF_IMAGES}"
_FROZEN = f"T/s * I * (6*n*p*p*v + L'*(4*N*v*(2*v+f') + 4*v*N*N) + n*(4*v*h + 6*h*h)){_OF_IMAGES}"
_POOLED_TRAINED = f"T/s * I * (12*n*p*p*v + L'*(12*n*v*(2*v+f') + 12*v*n*n) + 6*m*v*h){_OF_POOLED}"
_POOLED_FROZEN = f"T/s * I * (6*n*p*p*v + L'*(4*n*v*(2*v+f') + 4*v*n*n) + 4*m*v*h){_OF_POOLED}"


def vision_formula(vision: VisionSpec) -> str:
    """What is added to `flops.FORMULA`."""
    if vision.kind.pools:
        return _POOLED_FROZEN if vision.freeze else _POOLED_TRAINED
    return _FROZEN if vision.freeze else _TRAINED


def vision_flops(model: ModelSpec) -> float:
    """Floating-point operations of forward and backward for the images of one sequence; 0 where none are seen."""
    if not model.has_vision:
        return 0.0
    vision = model.image_encoder
    h, width, patches = model.hidden_size, vision.hidden_size, vision.patches
    of_patches = 2 * patches * CHANNELS * vision.patch_size**2 * width
    layers = vision.positions * layers_flops(encoder_model(vision))
    encoder = of_patches + layers / 3 if vision.freeze else 2 * of_patches + layers
    second = 0 if vision.kind.pools else 3 * h
    projector = 2 * vision.tokens_per_image * h * ((2 if vision.freeze else 3) * width + second)
    return vision.images_per_sequence * (encoder + projector)
