"""Rotary positions by torch's operations, in fp32."""

from __future__ import annotations

import torch


def rotated_by_operations(
    joined: torch.Tensor, frequencies: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `layers.rotation.rotated` returns, in tensors of their own."""
    query, key, value = joined.split([joined.size(-2) - 2, 1, 1], dim=-2)
    cos, sin = frequencies.cos().unsqueeze(-2), frequencies.sin().unsqueeze(-2)
    return _turned(query, cos, sin).flatten(2, 3), _turned(key, cos, sin).squeeze(-2), value.squeeze(-2)


def _turned(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """heads: [s, b, groups, n, d]."""
    width = cos.size(-1)
    moved, rest = heads[..., :width].float(), heads[..., width:]
    x, y = moved.chunk(2, dim=-1)
    return torch.cat(((moved * cos + torch.cat((-y, x), -1) * sin).to(heads.dtype), rest), -1)
