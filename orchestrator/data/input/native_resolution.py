"""The sides that an image in its own shape is scaled to, as transformers' processor of Qwen2.5-VL scales it."""

from __future__ import annotations

import math

from orchestrator.spec.vision import VisionSpec


def resized_sides(rows: int, columns: int, vision: VisionSpec) -> tuple[int, int]:
    """The sides of an image of this size: multiples of what becomes a token, with as many pixels as `vision` allows, at
    the nearest such shape (`smart_resize` of Qwen2-VL, which lets long strips have more)."""
    unit, least, most = vision.unit, vision.native.smallest_image_size**2, vision.image_size**2
    # Halves are rounded to even numbers, there as here.
    sides = round(rows / unit) * unit, round(columns / unit) * unit
    if sides[0] * sides[1] > most:
        shrunk = math.sqrt(rows * columns / most)
        sides = math.floor(rows / shrunk / unit) * unit, math.floor(columns / shrunk / unit) * unit
        return _within(max(unit, sides[0]), max(unit, sides[1]), unit, most)
    if sides[0] * sides[1] < least:
        grown = math.sqrt(least / (rows * columns))
        return _within(math.ceil(rows * grown / unit) * unit, math.ceil(columns * grown / unit) * unit, unit, most)
    return sides


def _within(rows: int, columns: int, unit: int, most: int) -> tuple[int, int]:
    """With the longer side cut to what leaves at most so many pixels."""
    shorter = min(rows, columns)
    longer = min(max(rows, columns), max(unit, most // (shorter * unit) * unit))
    return (shorter, longer) if rows <= columns else (longer, shorter)
