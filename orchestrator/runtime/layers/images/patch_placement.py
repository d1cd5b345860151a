"""Embeddings of images' patches in place of those of the tokens that stand for them."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable


def place(embedded: torch.Tensor, seen: torch.Tensor, is_patch: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    """embedded: [s, b, h]; seen: [patches, h]; is_patch, which: [s, b], where a patch stands and its number. Each
    patch stands in one place at most. Returns [s, b, h].

    The gradient of a look-up adds the rows of all text to some patch's: here a patch takes what is in its place.
    """
    apply: Any = _Place.apply
    placed: torch.Tensor = apply(embedded, seen, is_patch, which)
    return placed


class _Place(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, embedded: torch.Tensor, seen: torch.Tensor, is_patch: torch.Tensor, which: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(is_patch, which)
        ctx.patches = seen.size(0)
        patches = seen.index_select(0, which.flatten()).view_as(embedded)
        return torch.where(is_patch.unsqueeze(2), patches, embedded)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        is_patch, which = ctx.saved_tensors
        # The place of each patch, none by default; text writes behind the last.
        places = which.new_full((ctx.patches + 1,), -1)
        places.scatter_(
            0, torch.where(is_patch, which, ctx.patches).flatten(), torch.arange(which.numel(), device=which.device)
        )
        places = places[:-1]
        of_seen = gradient.flatten(0, 1).index_select(0, places.clamp(min=0))
        of_seen = of_seen.masked_fill(places.unsqueeze(1) < 0, 0.0)
        return gradient.masked_fill(is_patch.unsqueeze(2), 0.0), of_seen, None, None
