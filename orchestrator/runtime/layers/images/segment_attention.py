"""Attention of patches to those of the same window, or of the same image."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from orchestrator.runtime.layers.attention.core import CoreAttention


class SegmentAttention(CoreAttention):
    """Scaled dot product attention within segments, through torch. Shorter segments are filled up."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor, **unused: Any
    ) -> torch.Tensor:
        """query, key, value: [patches, 1, heads, d]; attention_mask: [segments, longest], the patches of each segment,
        -1 behind the last one of a shorter one.

        Returns [patches, 1, heads * d].
        """
        patches, width = query.size(0), query.size(2) * query.size(3)
        is_there = attention_mask >= 0
        taken = attention_mask.clamp(min=0).flatten()
        q, k, v = (
            each.index_select(0, taken).view(*attention_mask.shape, *each.shape[2:]).transpose(1, 2)
            for each in (query, key, value)
        )
        with self.dropping() as dropout:
            out = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=is_there[:, None, None], dropout_p=dropout, scale=self.scale
            )
        out = out.transpose(1, 2).reshape(-1, width)
        # What was filled up goes behind the last patch.
        places = torch.where(is_there, attention_mask, patches).flatten()
        found = out.new_zeros(patches + 1, width).index_copy(0, places, out)
        return found[:patches].unsqueeze(1)
