"""The sides that an image in its own shape is scaled to, as transformers' processor of Qwen2.5-VL scales it."""

from __future__ import annotations

import math

from orchestrator.spec.vision import VisionSpec


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
