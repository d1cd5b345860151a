"""Images cut into patches: their pixels around 0, and each patch in one row."""

from __future__ import annotations

import functools

import torch

from orchestrator.models.image_encoders import ImageEncoderKind
from orchestrator.runtime.layers.images.patch_order import Grid, Order
from orchestrator.spec.vision import VisionSpec


def scaled(images: torch.Tensor, vision: VisionSpec, dtype: torch.dtype) -> torch.Tensor:
    """images: [n, 3, ...], uint8; around 0, in the format of the weights."""
    mean, deviation = (each.view(3, *(1 for _ in images.shape[2:])) for each in _colours(vision.kind, images.device))
    return ((images.float() / 255 - mean) / deviation).to(dtype)


@functools.cache
def _colours(kind: ImageEncoderKind, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation of what encoders of a kind have seen, [3]. Made once: the host waits for the device when it
    does that, and a module's buffers would be rounded to the weights' format.
    """
    mean, deviation = (torch.tensor(values, device=device) for values in (kind.colour_mean, kind.colour_deviation))
    return mean, deviation


def cut(images: torch.Tensor, side: int) -> torch.Tensor:
    """images: [n, 3, size, size]; their patches row by row, [patches, n, 3 · side · side]."""
    number, along = images.size(0), images.size(2) // side
    rows = images.view(number, 3, along, side, along, side)
    return rows.permute(2, 4, 0, 1, 3, 5).reshape(along * along, number, -1)


def cut_in_order(pixels: torch.Tensor, grid: Grid, order: Order, side: int) -> torch.Tensor:
    """The patches of an image window by window, [patches, 3 · side · side]."""
    down, across = grid
    whole = pixels.view(3, down, side, across, side)
    patches = whole.permute(1, 3, 0, 2, 4).reshape(down * across, -1)
    return patches.index_select(0, order.patches.to(pixels.device, non_blocking=True))
