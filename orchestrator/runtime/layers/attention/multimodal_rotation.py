"""Rotary positions in time, by row and by column (Wang et al. 2024, Qwen2-VL, section 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class MultimodalRotation(torch.nn.Module):
    """Angles of tokens with three positions each, in place of megatron-core's, which needs a GPU to be built."""

    def __init__(self, inv_freq: torch.Tensor) -> None:
        """inv_freq: [r / 2] of r rotated channels, in radians per position."""
        super().__init__()
        self.inv_freq = inv_freq

    def forward(self, position_ids: torch.Tensor, mrope_section: Sequence[int], **unused: Any) -> torch.Tensor:
        """position_ids: [3, b, s]. Of `mrope_section` pairs of channels the first turn by the position in time, the
        next by the row, the others by the column. Returns [s, b, 1, r], in radians.
        """
        turned = position_ids[..., None].to(torch.float32) * self.inv_freq.to(position_ids.device)
        parts = turned.split_with_sizes(list(mrope_section), dim=-1)
        half = torch.cat([part[kind] for kind, part in enumerate(parts)], dim=-1)
        turned = torch.cat((half, half), dim=-1).transpose(0, 1).unsqueeze(2)
        # Laid out anew of one sequence too: what is rotated takes on its strides, and Transformer Engine's attention
        # asks for the same ones of keys and values.
        return turned.clone(memory_format=torch.contiguous_format)
