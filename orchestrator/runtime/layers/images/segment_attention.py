"""Attention of patches to those of the same window, or of the same image."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from orchestrator.runtime.layers.attention.core import CoreAttention
from orchestrator.runtime.layers.attention.scaled_dot_product import scaled_dot_product_attention
from orchestrator.runtime.layers.images.slots import Slots, in_slots, out_of_slots, slots_of


class SegmentAttention(CoreAttention):
    """Scaled dot product attention within segments, through torch. Segments of one length are computed as they lie;
    others of like length together, the shorter ones filled up.
    """

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor, **unused: Any
    ) -> torch.Tensor:
        """query, key, value: [patches, 1, heads, d]; attention_mask: [segments], on the host: how many patches each
        has, which come one segment after another.

        Returns [patches, 1, heads * d].
        """
        lengths = tuple(attention_mask.tolist())
        if len(set(lengths)) == 1:
            q, k, v = (each.view(len(lengths), lengths[0], *each.shape[2:]) for each in (query, key, value))
            return self._attend(q, k, v).view(query.size(0), 1, -1)
        groups = _groups_on(lengths, query.device, query.dtype)
        joined, found, first = in_slots(query, key, value, groups.slots), [], 0
        for shape, mask in zip(groups.shapes, groups.masks, strict=True):
            own = slice(first, first := first + shape.numel())
            q, k, v = (each[own].view(*shape, *each.shape[1:]) for each in joined)
            found.append(self._attend(q, k, v, mask).view(shape.numel(), -1))
        return out_of_slots(found[0] if len(found) == 1 else torch.cat(found), groups.slots).unsqueeze(1)

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Of segments [n, patches, heads, d], to whose scores `mask`, [n, 1, 1, patches], is added; the same shape,
        contiguous.
        """
        q, k, v = (each.transpose(1, 2) for each in (query, key, value))
        with self.dropping() as dropout:
            out = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=self.scale)
        return out.transpose(1, 2).contiguous()


class _Groups(NamedTuple):
    """Segments of like length together."""

    slots: Slots
    """Of the patches, one group after the other."""
    shapes: tuple[torch.Size, ...]
    """Of each group, [segments, longest]."""
    masks: tuple[torch.Tensor, ...]
    """Of each, [segments, 1, 1, longest]: 0 where there is a patch, and -inf where a segment is filled up."""


def groups_of_segments(lengths: Sequence[int]) -> list[torch.Tensor]:
    """Segments of like length together, in few groups: of each, [segments, longest], the numbers of the patches, which
    come one segment after another, and -1 behind the last one of a shorter segment. No more is filled up than there are
    patches.
    """
    groups: list[list[int]] = []
    longest = patches = 0  # of the last group
    for segment in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if groups and longest * (len(groups[-1]) + 1) <= 2 * (patches + lengths[segment]):
            groups[-1].append(segment)
            patches += lengths[segment]
        else:
            groups.append([segment])
            longest = patches = lengths[segment]
    counts = torch.tensor(lengths)
    firsts = counts.cumsum(0) - counts
    return [_numbers(firsts[group], counts[group]) for group in map(sorted, groups)]


def _numbers(firsts: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    within = torch.arange(int(counts.max()))
    return (firsts[:, None] + within).masked_fill(within >= counts[:, None], -1)


@functools.lru_cache(maxsize=4)  # the windows and the images of a micro-batch, for all layers and both passes
def _groups_on(lengths: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> _Groups:
    groups = groups_of_segments(lengths)
    masks = (torch.zeros(group.shape, dtype=dtype).masked_fill(group < 0, -torch.inf) for group in groups)
    return _Groups(
        slots_of(torch.cat([group.flatten() for group in groups]), device),
        tuple(group.shape for group in groups),
        tuple(mask[:, None, None].to(device, non_blocking=True) for mask in masks),
    )
