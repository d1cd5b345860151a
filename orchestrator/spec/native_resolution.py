"""An encoder of images of any size, each with a grid of patches of its own: that of Qwen2.5-VL (Bai et al. 2025)."""

from typing import Annotated

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.values import Positive, Size

FRAMES = 2
"""Frames of a video that a patch spans; an image is two that are alike."""
ROTARY_BASE = 10000
"""Of the encoder's positions."""


def _same(field: str, otherwise: resume.Meaning) -> resume.OnResume:
    """Written or left to its default, a value is the same."""

    def value(job: resume.JobSections) -> object:
        model = job.model
        sees = model.has_vision and model.image_encoder.kind.keeps_shape
        return getattr(model.image_encoder.native, field) if sees else None

    return resume.same_or(value, otherwise)


class NativeResolutionSpec(Section):
    """Images keep their shape: their sides are rounded to whole groups of patches. The encoder has rotary positions by
    row and column, RMSNorm, SwiGLU and biases; most of its layers attend within windows, and behind the last one a
    group of patches becomes one token. By default it is as Qwen2.5-VL's."""

    smallest_image_size: Annotated[Positive, _same("smallest_image_size", resume.LOGIC)] = 56
    """Images have at least as many pixels as a square of this side, and at most as many as one of `image_size`."""
    merge_size: Annotated[Positive, _same("merge_size", resume.SHAPE)] = 2
    """Patches of a side of a group, which becomes one token of the decoder."""
    attention_window_size: Annotated[Positive, _same("attention_window_size", resume.LOGIC)] = 112
    """Pixels of a window's side, beyond which the patches of most layers do not look."""
    full_attention_layers: Annotated[tuple[Size, ...], _same("full_attention_layers", resume.LOGIC)] = (7, 15, 23, 31)
    """Layers of the encoder, counted from 0, whose patches attend to those of the whole image."""

    def window_patches(self, patch_size: int) -> int:
        """Patches of a window."""
        return (self.attention_window_size // patch_size) ** 2

    def is_full(self, layer: int) -> bool:
        """Whether the patches of a layer, counted from 0, attend to those of the whole image."""
        return layer in self.full_attention_layers
