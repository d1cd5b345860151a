"""From an image file to the pixels that a model sees, as CLIP's processor of transformers makes them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.data.optional import optional_module


def pillow(module: str = "Image") -> Any:
    """A module of Pillow's. Raises MissingDependency where that is not installed."""
    return optional_module(f"PIL.{module}", "reading images", package="pillow")


def image_pixels(path: Path, size: int) -> bytes:
    """A file's image, upright, [3, size, size] in red, green and blue: scaled until its shorter side has `size` pixels,
    and cut to the square in its middle.

    Raises ValueError with the reason why there is none, MissingDependency without Pillow.
    """
    library, operations = pillow(), pillow("ImageOps")
    if not path.is_file():
        raise ValueError(f"image {path} {'is not a file' if path.exists() else 'does not exist'}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", library.DecompressionBombWarning)
            with library.open(path) as image:
                operations.exif_transpose(image, in_place=True)
                return _square(library, image if image.mode == "RGB" else image.convert("RGB"), size)
    except library.UnidentifiedImageError as error:
        raise ValueError(f"image {path} is none that Pillow reads") from error
    except (library.DecompressionBombWarning, library.DecompressionBombError) as error:
        raise ValueError(f"image {path} is too large: {error}") from error
    except Exception as error:  # decoders raise whatever a damaged file makes them stumble over
        raise ValueError(f"image {path} cannot be read: {error}") from error


def _square(library: Any, image: Any, size: int) -> bytes:
    """The middle of an image, scaled as a whole: by Pillow, like that processor, to the same pixel."""
    width, height = image.size
    shorter = min(width, height)
    scaled = (int(size * width / shorter), int(size * height / shorter))
    if scaled[0] * scaled[1] > library.MAX_IMAGE_PIXELS:
        raise ValueError(f"it is {width} x {height} pixels, too long and narrow to be scaled to {size}")
    pixels = np.asarray(image.resize(scaled, library.Resampling.BICUBIC))
    left, top = ((side - size) // 2 for side in scaled)
    return pixels[top : top + size, left : left + size].transpose(2, 0, 1).tobytes()
