"""Masks of attention in both directions among the tokens of an image (Gemma Team 2025, "Gemma 3 Technical Report")."""

from __future__ import annotations

import math

import torch

from orchestrator.runtime.layers.attention.scores import causal_mask


def image_masks(image_mask: torch.Tensor, window: int | None, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the scores so that a token attends to those before it, and one of an image to all of that image:
    [1, b, 1, s, s] from `image_mask` [b, s], not 0 where a token is one of an image. With a window below s [2, b, 1, s,
    s]: behind it the same for layers with the window, which also cuts what is before in an image, as transformers does.

    Tokens of images with no text between them are taken for one image, as transformers takes them. One tensor for all
    layers, in the type of the scores, as `packed_mask` is.
    """
    length, device = image_mask.size(1), image_mask.device
    is_image = image_mask > 0
    begins = is_image & ~torch.nn.functional.pad(is_image, (1, 0))[:, :-1]
    number = torch.where(is_image, begins.cumsum(dim=1), 0)
    same = (number[:, :, None] == number[:, None, :]) & is_image[:, :, None]
    seen = [same | causal_mask(length, length, None, None, torch.bool, device)]
    if window is not None and window < length:
        positions = torch.arange(length, device=device)
        seen.append(seen[0] & (positions[:, None] - positions < window))
    masks = torch.zeros(len(seen), *same.shape, dtype=dtype, device=device)
    for mask, of_kind in zip(masks, seen, strict=True):
        mask.masked_fill_(~of_kind, -math.inf)
    return masks.unsqueeze(2)
