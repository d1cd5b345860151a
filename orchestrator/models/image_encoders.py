"""The kinds of encoders of images, and what is true of all encoders of a kind. Light."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

ImageEncoderName: TypeAlias = Literal["llava", "gemma3", "qwen2.5"]
"""A value of `model.vision.type`."""
Colours: TypeAlias = tuple[float, float, float]
"""Of red, green and blue, of 1."""

COLOUR_MEAN: Colours = (0.48145466, 0.4578275, 0.40821073)
COLOUR_DEVIATION: Colours = (0.26862954, 0.26130258, 0.27577711)
"""Of the images that CLIP was trained on (Radford et al. 2021)."""
_HALF: Colours = (0.5, 0.5, 0.5)
"""SigLIP's mean and deviation (Zhai et al. 2023): its pixels lie between -1 and 1."""


class ImageEncoderKind(NamedTuple):
    """What is true of all encoders of a kind."""

    keeps_shape: bool
    """Images keep their shape, each with a grid of patches of its own, as `model.vision.native_resolution` says. Else
    they are squares of `model.vision.image_size`."""
    class_token: bool
    """A token for the whole image stands before those of its patches."""
    patch_bias: bool
    """The matrix of patches has a bias."""
    pools: bool
    """Squares of patches are averaged into `model.vision.pooled_tokens` tokens, which a norm and one matrix project.
    Else each patch is projected by two matrices with biases."""
    attends_both_ways: bool
    """In the decoder, the tokens of an image attend to each other, to later ones as well."""
    crops: bool
    """An image that is not square is cropped; else it is distorted, or keeps its shape."""
    resampling: Literal["bicubic", "bilinear"]
    """How an image is scaled, by Pillow's name."""
    colour_mean: Colours
    colour_deviation: Colours
    """Subtracted from pixels, and what they are divided by."""
    token: str
    """What tokenizers call the token that stands for images."""
    around: tuple[str, str]
    """The text before and behind the tokens of an image, written where it does not stand there yet."""


IMAGE_ENCODERS: Final[Mapping[ImageEncoderName, ImageEncoderKind]] = {
    # Liu et al. 2023, "Visual Instruction Tuning", and 2024, "Improved Baselines".
    "llava": ImageEncoderKind(
        keeps_shape=False,
        class_token=True,
        patch_bias=False,
        pools=False,
        attends_both_ways=False,
        crops=True,
        resampling="bicubic",
        colour_mean=COLOUR_MEAN,
        colour_deviation=COLOUR_DEVIATION,
        token="<image>",
        around=("", ""),
    ),
    # Gemma Team 2025, "Gemma 3 Technical Report", section 2.1.
    "gemma3": ImageEncoderKind(
        keeps_shape=False,
        class_token=False,
        patch_bias=True,
        pools=True,
        attends_both_ways=True,
        crops=False,
        resampling="bilinear",
        colour_mean=_HALF,
        colour_deviation=_HALF,
        token="<image_soft_token>",
        around=("\n\n<start_of_image>", "<end_of_image>\n\n"),
    ),
    # Bai et al. 2025, "Qwen2.5-VL Technical Report", section 2.1.
    "qwen2.5": ImageEncoderKind(
        keeps_shape=True,
        class_token=False,
        patch_bias=False,
        pools=False,
        attends_both_ways=False,
        crops=False,
        resampling="bicubic",
        colour_mean=COLOUR_MEAN,
        colour_deviation=COLOUR_DEVIATION,
        token="<|image_pad|>",
        around=("<|vision_start|>", "<|vision_end|>"),
    ),
}
