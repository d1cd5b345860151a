"""From an image file to its pixels in its own shape, as transformers' processor of Qwen2.5-VL makes them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from orchestrator.data.input.images import Pixels, pillow, pixels, upright
from orchestrator.spec.vision import VisionSpec

_LONGEST = 200
"""How many times its shorter side an image's longer one may be; transformers' limit."""


def resized_sides(rows: int, columns: int, vision: VisionSpec) -> tuple[int, int]:
    """The sides of an image of this size: multiples of what becomes a token, with as many pixels as `vision` allows, at
    the nearest such shape (`smart_resize` of Qwen2-VL)."""
    unit, least, most = vision.unit, vision.native.smallest_image_size**2, vision.image_size**2
    # Halves are rounded to even numbers, there as here.
    sides = round(rows / unit) * unit, round(columns / unit) * unit
    if sides[0] * sides[1] > most:
        shrunk = math.sqrt(rows * columns / most)
        return max(unit, math.floor(rows / shrunk / unit) * unit), max(unit, math.floor(columns / shrunk / unit) * unit)
    if sides[0] * sides[1] < least:
        grown = math.sqrt(least / (rows * columns))
        return math.ceil(rows * grown / unit) * unit, math.ceil(columns * grown / unit) * unit
    return sides


def pixels_for(source: Path | bytes, vision: VisionSpec, most: float = math.inf) -> Pixels:
    """An image, of a file or of what is in one, as a model sees it, [3, rows, columns]; see `pixels`, whose errors it
    raises."""
    if not vision.is_native:
        return pixels(source, vision.image_size, most)
    whole = upright(source, vision.image_size, most, longest=_LONGEST)
    rows, columns = resized_sides(whole.height, whole.width, vision)
    found = np.asarray(whole.resize((columns, rows), pillow().Resampling.BICUBIC))
    return np.ascontiguousarray(found.transpose(2, 0, 1))
