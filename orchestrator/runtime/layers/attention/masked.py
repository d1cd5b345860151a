"""Attention of an encoder, and of a decoder that attends to it: keys that are padding, and a bias by distance."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig

from orchestrator.runtime.layers.attention.core import CoreAttention
from orchestrator.runtime.layers.attention.scaled_dot_product import scaled_dot_product_attention

Bias = Callable[[int, int], torch.Tensor]
"""From the lengths of queries and keys to what is added to their scores: [1, heads of this rank, sq, sk]."""


class WindowMasks:
    """Which keys of padded samples a window of tokens on both sides leaves: all layers of a chunk share the mask of a
    micro-batch.
    """

    def __init__(self) -> None:
        self._made: tuple[torch.Tensor, torch.Tensor] | None = None

    def mask(self, hidden: torch.Tensor, window: int, dtype: torch.dtype) -> torch.Tensor:
        """What is added to the scores, [b, 1, s, s], from hidden [b, 1, 1, s], True where there is no key. `window`:
        tokens that a token attends to on one side, itself included; all layers that have one have the same. Padding
        sees itself: its scores would be NaN without a key.

        In the type of the scores, as a mask of bool would be turned into this anew in every layer. `hidden` is known by
        being the same tensor, as in `Lengths`.
        """
        if self._made is None or self._made[0] is not hidden:
            positions = torch.arange(hidden.size(-1), dtype=torch.int32, device=hidden.device)
            distance = (positions[:, None] - positions).abs_()
            unseen = (hidden | (distance >= window)) & (distance > 0)
            mask = torch.zeros(unseen.shape, dtype=dtype, device=hidden.device).masked_fill_(unseen, -math.inf)
            self._made = hidden, mask
        return self._made[1]


class MaskedAttention(CoreAttention):
    """Scaled dot product attention with hidden keys and a bias, through torch."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        *arguments: Any,
        masks: WindowMasks | None = None,
        **options: Any,
    ) -> None:
        """`masks`: of all layers of a chunk, some of which have a window."""
        super().__init__(config, layer_number, attn_mask_type, *arguments, **options)
        self.masks = masks
        self.window: int | None = None if masks is None else config.window_of(layer_number)
        self.causal = attn_mask_type == AttnMaskType.causal
        self.bias: Bias | None = None
        """Asked in each pass, inside what is recomputed: a bias from outside would be differentiated twice there."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **unused: Any,
    ) -> torch.Tensor:
        """query: [sq, b, heads, d]; key, value: [sk, b, heads, d]; attention_mask: [b, 1, 1, sk], True hides a key.

        Returns [sq, b, heads * d].
        """
        sq, sk = query.size(0), key.size(0)
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        mask = self._mask(attention_mask, sq, sk, q.dtype)
        with self.dropping() as dropout:
            out = scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=self.causal and mask is None, scale=self.scale
            )
        return out.permute(2, 0, 1, 3).reshape(sq, query.size(1), -1)

    def _mask(self, hidden: torch.Tensor | None, sq: int, sk: int, dtype: torch.dtype) -> torch.Tensor | None:
        """What torch adds to the scores, or which keys it keeps. Causal attention needs no padding mask: padding comes
        last, where no query that counts sees it."""
        if self.masks is not None and self.window is not None and hidden is not None:
            return self.masks.mask(hidden, self.window, dtype)
        if self.bias is None:
            return None if self.causal or hidden is None else ~hidden
        bias = self.bias(sq, sk).to(dtype)
        if self.causal:
            hidden = torch.ones(sq, sk, dtype=torch.bool, device=bias.device).triu(diagonal=1)
        # A finite number: a sample that is all padding must not become NaN.
        return bias if hidden is None else bias.masked_fill(hidden, torch.finfo(dtype).min)
