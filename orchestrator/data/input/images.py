"""From an image file to the pixels that a model sees, as transformers' processors of CLIP, Gemma 3 and Qwen2.5-VL
make them, by Pillow."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.data.input.native_resolution import resized_sides
from orchestrator.data.input.optional import optional_module
from orchestrator.errors import UserError
from orchestrator.spec.vision import VisionSpec

Pixels = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]
"""Red, green and blue of an image, [3, rows, columns]."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""What is read. Pillow knows many more, and starts another program to read some of them."""
_LONGEST = 32
"""How many times its shorter side an image's longer one may be: so much more is scaled than is seen."""
_LONGEST_UNCUT = 200
"""The same of one that keeps its shape: the limit of transformers."""


def pillow(module: str = "Image") -> Any:
    """A module of Pillow's, which only images need. Raises MissingDependency where it is not installed."""
    return optional_module(f"PIL.{module}", "reading images", package="pillow")


def pixels(source: Path | bytes, vision: VisionSpec, most: float = math.inf) -> Pixels:
    """An image, of a file or of what is in one, upright, as encoders of a kind see it: scaled until its shorter side
    has `image_size` pixels, and cut to the square in its middle; scaled to the square; or in its own shape, as
    `native_resolution` says. It may have `most` pixels, and as many as Pillow takes for harmless.

    Raises UserError for what is no image, MissingDependency without Pillow.
    """
    size, kind = vision.image_size, vision.kind
    whole = _upright(source, size, most, _LONGEST_UNCUT if kind.keeps_shape else _LONGEST)
    width, height = whole.size
    resampling = pillow().Resampling[kind.resampling.upper()]
    if kind.keeps_shape:
        rows, columns = resized_sides(height, width, vision)
        return np.ascontiguousarray(np.asarray(whole.resize((columns, rows), resampling)).transpose(2, 0, 1))
    shorter = min(width, height)
    scaled = (size * width // shorter, size * height // shorter) if kind.crops else (size, size)
    # As a whole, though only its middle is wanted: so it is the same to the pixel.
    found = np.asarray(whole.resize(scaled, resampling))
    left, top = ((side - size) // 2 for side in scaled)
    # Copied: a part of an array keeps the whole.
    return found[top : top + size, left : left + size].transpose(2, 0, 1).copy()


def _upright(source: Path | bytes, size: int, most: float, longest: int) -> Any:
    """Pillow's image, in red, green and blue, before it is scaled to `size`; its longer side may be `longest` times its
    shorter one. See `pixels`."""
    library, operations = pillow(), pillow("ImageOps")
    name = "the image" if isinstance(source, bytes) else f"image {source}"
    most = min(most, library.MAX_IMAGE_PIXELS or math.inf)
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else _regular(source)
        with library.open(file, formats=FORMATS) as image:
            _check_sides(image.size, size, most, longest)
            image.load()
            # Of no use here, and Pillow would warn of it. Warnings are the process's: a thread can turn none off.
            image.info.pop("transparency", None)
            operations.exif_transpose(image, in_place=True)
            return image if image.mode == "RGB" else image.convert("RGB")
    except library.UnidentifiedImageError as error:
        raise UserError(
            f"{name} is not supported; supported are {', '.join(FORMATS[:-1])} and {FORMATS[-1]}",
            code="unsupported_image_format",
        ) from error
    except Exception as error:  # decoders raise whatever a damaged file makes them stumble over
        raise UserError(
            f"{name} cannot be read: {getattr(error, 'strerror', None) or error}", code="unreadable_image"
        ) from error


def _check_sides(sides: tuple[int, int], size: int, most: float, longest: int) -> None:
    """Raises ValueError for an image that would take much memory, before it takes any."""
    width, height = sides
    if width * height > most:
        raise ValueError(f"{width} x {height} exceed the limit of {most:.0f} pixels per image: make it smaller")
    if min(width, height) < 1 or max(width, height) > longest * min(width, height):
        raise ValueError(
            f"it has {width} x {height} pixels: it is too long and narrow to scale to {size}; crop it until its "
            f"longer side has at most {longest} times the pixels of its shorter one"
        )


def _regular(path: Path) -> Path:
    """The path of a file: a pipe would be waited for, a device read for ever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError("it is not a file")
    return path
