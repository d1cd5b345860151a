"""From an image file to the pixels that a model sees, by Pillow."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np

from orchestrator.errors import MissingDependency, UserError

Pixels = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]
"""Red, green and blue of an image, [3, size, size]."""


def pixels(source: Path | bytes, size: int) -> Pixels:
    """An image, of a file or of what is in one, upright: scaled until its shorter side has `size` pixels, and cut to
    the square in its middle.

    Raises UserError for what is no image, MissingDependency without Pillow.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError  # who gives no images needs none of it
    except ModuleNotFoundError as error:
        raise MissingDependency("reading images needs Pillow: pip install pillow") from error
    name = "the image" if isinstance(source, bytes) else f"image {source}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
                upright = ImageOps.exif_transpose(image).convert("RGB")
    except UnidentifiedImageError as error:
        raise UserError(f"{name} is none that Pillow reads") from error
    except Exception as error:  # decoders raise whatever a damaged file makes them stumble over
        raise UserError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    width, height = upright.size
    shorter = min(width, height)
    scaled = (size * width // shorter, size * height // shorter)
    left, top = ((side - size) // 2 for side in scaled)
    if scaled[0] * scaled[1] > (Image.MAX_IMAGE_PIXELS or 0):
        raise UserError(f"{name} has {width} x {height} pixels: it is too long and narrow to be scaled to {size}")
    found = np.asarray(upright.resize(scaled, Image.Resampling.BICUBIC))
    return found[top : top + size, left : left + size].transpose(2, 0, 1)
