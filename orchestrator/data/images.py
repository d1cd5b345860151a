"""From an image file to the pixels that a model sees, as CLIP's processor of transformers makes them, by Pillow."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.data.optional import optional_module
from orchestrator.errors import UserError

Pixels = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]
"""Red, green and blue of an image, [3, size, size]."""


def pillow(module: str = "Image") -> Any:
    """A module of Pillow's, which only images need. Raises MissingDependency where it is not installed."""
    return optional_module(f"PIL.{module}", "reading images", package="pillow")


def pixels(source: Path | bytes, size: int) -> Pixels:
    """An image, of a file or of what is in one, upright: scaled until its shorter side has `size` pixels, and cut to
    the square in its middle.

    Raises UserError for what is no image, MissingDependency without Pillow.
    """
    library, operations = pillow(), pillow("ImageOps")
    name = "the image" if isinstance(source, bytes) else f"image {source}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", library.DecompressionBombWarning)
            with library.open(io.BytesIO(source) if isinstance(source, bytes) else _regular(source)) as image:
                operations.exif_transpose(image, in_place=True)
                upright = image if image.mode == "RGB" else image.convert("RGB")
                upright.load()
    except library.UnidentifiedImageError as error:
        raise UserError(f"{name} is none that Pillow reads") from error
    except Exception as error:  # decoders raise whatever a damaged file makes them stumble over
        raise UserError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    width, height = upright.size
    shorter = min(width, height)
    scaled = (size * width // shorter, size * height // shorter)
    if scaled[0] * scaled[1] > (library.MAX_IMAGE_PIXELS or 0):
        raise UserError(f"{name} has {width} x {height} pixels: it is too long and narrow to be scaled to {size}")
    # As a whole, though only its middle is wanted: so it is the same to the pixel.
    found = np.asarray(upright.resize(scaled, library.Resampling.BICUBIC))
    left, top = ((side - size) // 2 for side in scaled)
    return found[top : top + size, left : left + size].transpose(2, 0, 1)


def _regular(path: Path) -> Path:
    """The path of a file: a pipe would be waited for, a device read for ever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError("it is not a file")
    return path
