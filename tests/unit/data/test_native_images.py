"""Images in their own shape, as transformers' processor of Qwen2-VL makes them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.refused import refused

from orchestrator.data.input.images import pixels
from orchestrator.data.input.native_resolution import resized_sides
from orchestrator.spec.vision import VisionSpec

VISION = VisionSpec.model_validate({"image_size": 280, "type": "qwen2.5"})


def encoded(rows: int, columns: int) -> bytes:
    noise = np.random.default_rng(rows).integers(0, 256, (rows, columns, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize("shape", [(1, 1), (30, 200), (14, 42), (70, 98), (600, 450), (40, 3000), (1999, 11)])
def test_pixels_are_those_of_transformers(shape: tuple[int, int]) -> None:
    processing: Any = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    file = encoded(*shape)
    size = {"shortest_edge": 56 * 56, "longest_edge": 280 * 280}
    processor = processing.Qwen2VLImageProcessorPil(size=size, do_normalize=False, do_rescale=False)
    given = processor(images=[Image.open(io.BytesIO(file))], return_tensors="np")
    [[_, rows, columns]] = given["image_grid_thw"].tolist()
    ours = pixels(file, VISION)
    assert ours.shape == (3, 14 * rows, 14 * columns)
    groups = ours.reshape(3, rows // 2, 2, 14, columns // 2, 2, 14).transpose(1, 4, 2, 5, 0, 3, 6)
    twice = np.repeat(groups.reshape(rows * columns, 3, 1, 14, 14), 2, axis=2)
    np.testing.assert_array_equal(twice.reshape(rows * columns, -1), given["pixel_values"])


def test_sides_are_whole_tokens_within_the_limits() -> None:
    for rows in range(1, 900, 37):
        for columns in range(1, 900, 41):
            sides = resized_sides(rows, columns, VISION)
            assert all(side % 28 == 0 and side > 0 for side in sides)
            assert 56**2 <= sides[0] * sides[1] <= 280**2


@pytest.mark.parametrize(("size", "rows", "columns"), [(336, 28, 5600), (336, 5600, 28), (56, 30, 31), (280, 20, 3999)])
def test_a_long_strip_has_no_more_pixels_than_others(size: int, rows: int, columns: int) -> None:
    vision = VISION.model_copy(update={"image_size": size})
    sides = resized_sides(rows, columns, vision)
    assert all(side % 28 == 0 and side > 0 for side in sides)
    assert sides[0] * sides[1] <= size**2
    assert (sides[0] > sides[1]) == (rows > columns) or sides[0] == sides[1]


def test_a_strip_is_refused() -> None:
    with refused("unreadable_image", "200 times"):
        pixels(encoded(1, 201), VISION)
