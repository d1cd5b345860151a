"""The encoder of images of any size takes the memory of the patches that there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.runtime.layers.images.segment_attention import groups_of_segments


@pytest.mark.slow("builds an encoder in a process of its own")
def test_small_images_are_not_filled_up_to_a_large_one(run_ranks: Callable[[str, int], list[Any]]) -> None:
    """The widest layer of the encoder gives 128 numbers for each patch."""
    [found] = run_ranks("images-of-any-size", 1)
    assert found["numbers per patch"] <= 128
    assert found["embeddings"] < 1e-5 * found["spread"]
    assert found["gradients"] < 1e-5


@pytest.mark.parametrize(
    "lengths", [[5], [64, 64, 16, 64, 4], [1024, *[4] * 100], [*range(1, 65)], [2**number for number in range(12)]]
)
def test_segments_of_like_length_are_together(lengths: list[int]) -> None:
    groups = groups_of_segments(lengths)
    numbers = [row[row >= 0].tolist() for group in groups for row in group]
    ends = [sum(lengths[: place + 1]) for place in range(len(lengths))]
    assert sorted(numbers) == [list(range(end - length, end)) for end, length in zip(ends, lengths, strict=True)]
    assert sum(group.numel() for group in groups) <= 2 * sum(lengths)
    assert len(groups) <= max(lengths).bit_length()
