"""Rows in slots, each row in one: the gradient of a row is that of its slot. torch adds up the gradients of rows that
are picked by number, as it cannot know that none is picked twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from orchestrator.runtime.layers.attention.rotation import thirds_of_one


class Slots(NamedTuple):
    """Where rows stand."""

    rows: torch.Tensor
    """[slots]: the row in each; of an empty one the first row."""
    places: torch.Tensor
    """[rows]: the slot of each."""
    empty: torch.Tensor | None = None
    """[slots, 1]: which hold no row; None where each holds one."""


def slots_of(numbers: torch.Tensor, device: torch.device) -> Slots:
    """Slots with these rows, [slots] on the host, -1 in an empty one; on a device."""
    empty = numbers < 0
    (full,) = torch.where(~empty)
    places = torch.empty_like(full)
    places[numbers[full]] = full
    found = numbers.clamp(min=0), places, empty[:, None]
    rows, places, empty = (each.to(device, non_blocking=True) for each in found)
    return Slots(rows, places, empty if len(full) < len(numbers) else None)


def in_slots(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: Slots
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """query, key, value: [rows, 1, heads, d]; [slots, heads, d] of each, thirds of one tensor. An empty slot has
    something, and must have no gradient.
    """
    apply: Any = _InSlots.apply
    q, k, v = apply(query, key, value, slots)
    return q, k, v


def out_of_slots(found: torch.Tensor, slots: Slots) -> torch.Tensor:
    """found: [slots, n]; [rows, n]."""
    apply: Any = _OutOfSlots.apply
    rows: torch.Tensor = apply(found, slots)
    return rows


class _InSlots(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: Slots
    ) -> tuple[torch.Tensor, ...]:
        ctx.slots = slots
        joined = thirds_of_one(query, key, value)
        if joined is None:
            joined = torch.stack((query, key, value), dim=-2)
        return joined.squeeze(1).index_select(0, slots.rows).unbind(-2)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        joined = torch.stack((query, key, value), dim=-2)
        return *joined.index_select(0, ctx.slots.places).unsqueeze(1).unbind(-2), None


class _OutOfSlots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, found: torch.Tensor, slots: Slots) -> torch.Tensor:
        ctx.slots = slots
        return found.index_select(0, slots.places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        own = gradient.index_select(0, ctx.slots.rows)
        empty = ctx.slots.empty
        return own if empty is None else own.masked_fill_(empty, 0.0), None
