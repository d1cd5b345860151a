"""Transformer Engine's attention of an encoder whose samples are padded: all layers have their lengths counted once."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.extensions.transformer_engine import TEDotProductAttention
from megatron.core.packed_seq_params import PackedSeqParams

from orchestrator.runtime.layers.attention.padded_lengths import Lengths


class PaddedAttention(TEDotProductAttention):
    """The same values: left to itself, Transformer Engine counts them in each layer anew, by sixteen small kernels."""

    def __init__(self, *arguments: Any, lengths: Lengths, **options: Any) -> None:
        """`lengths`: of all layers of a chunk."""
        super().__init__(*arguments, **options)
        self._lengths = lengths

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor,
        *arguments: Any,
        packed_seq_params: None = None,
        **options: Any,
    ) -> torch.Tensor:
        """query, key, value: [s, b, heads, d]; attention_mask: [b, 1, 1, s], True hides a key; [s, b, heads * d]."""
        assert packed_seq_params is None, "an encoder's samples are padded, and not packed"
        ends = self._lengths.ends(attention_mask)
        counted = PackedSeqParams(qkv_format="sbhd", cu_seqlens_q=ends, cu_seqlens_kv=ends)
        out: torch.Tensor = super().forward(
            query, key, value, attention_mask, *arguments, packed_seq_params=counted, **options
        )
        return out
