"""Images of any size in a data set of conversations: the rows and columns of each before its pixels. Light."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from orchestrator.spec.vision import VisionSpec

_SIDES = struct.Struct("<2H")
"""Rows and columns of what becomes one token each."""


def stored_image(pixels: bytes, rows: int, columns: int, vision: VisionSpec) -> bytes:
    """An image as it is stored, of its pixels [3, rows, columns]."""
    return _SIDES.pack(rows // vision.unit, columns // vision.unit) + pixels


def most_images(vision: VisionSpec) -> int:
    """How many images a conversation can have at most."""
    return (_bytes_per_token(vision) - 1) // _SIDES.size


def count_of(stored: int, vision: VisionSpec) -> int:
    """How many images so many bytes of a conversation are: their pixels are whole tokens, and what is over is sides."""
    return stored % _bytes_per_token(vision) // _SIDES.size


def is_count(stored: int, images: int, vision: VisionSpec) -> bool:
    """Whether so many bytes of a data set may be so many images."""
    return (stored - images * _SIDES.size) % _bytes_per_token(vision) == 0


def images_in(stored: bytes, vision: VisionSpec) -> Iterator[tuple[int, int, int, int]]:
    """Of each image of a conversation its rows and columns of pixels, and where these begin and end in `stored`."""
    first = 0
    while first < len(stored):
        rows, columns = (side * vision.unit for side in _SIDES.unpack_from(stored, first))
        begin = first + _SIDES.size
        first = begin + 3 * rows * columns
        yield rows, columns, begin, first


def _bytes_per_token(vision: VisionSpec) -> int:
    return 3 * vision.unit**2
