"""Grids of patches: the order in which an encoder of images of any size has the patches of one, what attends to what,
and where its tokens stand (Bai et al. 2025, Qwen2.5-VL).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch

from orchestrator.spec.vision import VisionSpec

Grid = tuple[int, int]
"""Rows and columns of patches."""


class Order(NamedTuple):
    """The patches of an image, window by window, and in each of these group by group."""

    patches: torch.Tensor
    """[rows · columns]: their numbers, counted row by row."""
    windows: tuple[int, ...]
    """How many patches each window has."""
    groups: torch.Tensor
    """[groups]: where that of each token of the decoder stands, counted row by row."""
    tokens: torch.Tensor
    """[groups]: the token of each, counted row by row."""


@functools.lru_cache(maxsize=1024)
def order_of(grid: Grid, vision: VisionSpec) -> Order:
    """The order of an image's patches."""
    size, (_, columns) = vision.merge_size, grid
    across = vision.native.attention_window_size // vision.unit
    row, column = np.divmod(np.arange(grid[0] * columns), columns)
    group_row, group_column = row // size, column // size
    window_row, window_column = group_row // across, group_column // across
    patches = np.lexsort((column % size, row % size, group_column, group_row, window_column, window_row))
    windows = (window_row * columns + window_column)[patches]
    _, lengths = np.unique(windows, return_counts=True)
    groups = (group_row * columns + group_column)[patches][:: size * size]
    where = np.argsort(groups)
    tokens = torch.from_numpy(np.argsort(where))
    return Order(torch.from_numpy(patches), tuple(lengths.tolist()), torch.from_numpy(where), tokens)


def angles(patches: torch.Tensor, columns: int, channels: int, base: int) -> torch.Tensor:
    """[patches, channels] in radians, of patches counted row by row: of the first half of the pairs by their row, of
    the other by their column.
    """
    frequencies = 1.0 / base ** (torch.arange(0, channels // 2, 2, dtype=torch.float32) / (channels // 2))
    places = torch.stack((patches // columns, patches % columns), dim=1).to(torch.float32)
    turned = (places[:, :, None] * frequencies).flatten(1)
    return torch.cat((turned, turned), dim=1)


def token_positions(image_mask: torch.Tensor, grids: torch.Tensor, merge_size: int) -> torch.Tensor:
    """[3, b, s]: the position of each token in time, by row and by column. `image_mask` [b, s] is not 0 where a token
    is one of an image, whose grids of patches are `grids` [b, n, 2], 0 where there are fewer.

    Text counts on in all three. The tokens of an image are at one time, and behind it text goes on as far as the image
    reaches in rows or in columns.
    """
    is_image = image_mask > 0
    sides = grids // merge_size
    ends = sides.prod(dim=-1).cumsum(dim=1)  # [b, n], behind the last token of each image
    reached = torch.nn.functional.pad(sides.amax(dim=-1).cumsum(dim=1), (1, 0))  # [b, n + 1], of the images before
    seen = is_image.cumsum(dim=1)
    before = seen - is_image.long()  # tokens of images before this one
    which = torch.searchsorted(ends, before.contiguous(), right=True)
    text = torch.arange(image_mask.size(1), device=image_mask.device) - before
    first = text + reached.gather(1, which)
    own = which.clamp(max=grids.size(1) - 1)
    within = before - torch.nn.functional.pad(ends, (1, 0)).gather(1, own)
    columns = sides[..., 1].gather(1, own).clamp(min=1)
    zero = torch.zeros_like(within)
    row, column = (torch.where(is_image, each, zero) for each in (within // columns, within % columns))
    return torch.stack((first, first + row, first + column))
