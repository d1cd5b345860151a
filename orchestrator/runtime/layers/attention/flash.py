"""FlashAttention 4 (Hopper, CuTe DSL) as the core of attention, without a copy of what it takes or gives.

The two functions are the package's inner ones, on which Transformer Engine and torch build as well: the public one
allocates [b, s, h, d] itself, and what goes through it would be copied once more in each pass.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from orchestrator.runtime.layers.attention.core import CoreAttention


class FlashAttention(CoreAttention):
    """Causal attention of as many queries as keys, without dropout."""

    together = True
    """Whether gradients lie as the projection's output does, where they are as many."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *unused: Any, **others: Any
    ) -> torch.Tensor:
        """query: [s, b, heads, d]; key, value: [s, b, groups, d]; returns [s, b, heads * d]."""
        assert query.size(0) == key.size(0), "there is no cache of keys and values in training"
        return attend(query, key, value, self.scale, together=self.together)


class FlashAttentionApart(FlashAttention):
    """The same where megatron-core takes queries, keys and values apart, and copies their gradients together: thirds of
    one tensor would be copied once more.
    """

    together = False


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, *, together: bool = True
) -> torch.Tensor:
    """Causal attention of [s, b, heads, d] and twice [s, b, groups, d] with scores times `scale`: [s, b, heads * d].
    `together`: of as many heads as groups the gradients are thirds of one tensor [s, b, heads, 3, d].
    """
    apply: Any = _Attention.apply
    out: torch.Tensor = apply(query, key, value, scale, together)
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, together: bool
    ) -> torch.Tensor:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        q, k, v = _batch_first(query, key, value)
        _, lse, *_ = interface()._flash_attn_fwd(
            q, k, v, softmax_scale=scale, causal=True, return_lse=True, out=out.transpose(0, 1)
        )
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.scale = scale
        ctx.together = together
        return out.flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None, None]:
        query, key, value, out, lse = ctx.saved_tensors
        gradients = _like(query, key, together=ctx.together)
        interface()._flash_attn_bwd(
            *_batch_first(query, key, value, out, d_out.view_as(out)),
            lse,
            softmax_scale=ctx.scale,
            causal=True,
            **dict(zip(("dq", "dk", "dv"), _batch_first(*gradients), strict=True)),
        )
        return *gradients, None, None


def _batch_first(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [each.transpose(0, 1) for each in tensors]


def _like(query: torch.Tensor, key: torch.Tensor, *, together: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Empty gradients of queries, keys and values; `together`, where heads are as many as groups, thirds of one tensor
    [s, b, heads, 3, d], as the projection's output is, so that what rotates them back has them where they belong.
    """
    if together and query.shape == key.shape:
        s, b, heads, d = query.shape
        thirds = torch.empty(s, b, heads, 3, d, dtype=query.dtype, device=query.device).unbind(3)
        return thirds[0], thirds[1], thirds[2]
    dq, dk, dv = (torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in (query, key, key))
    return dq, dk, dv


@cache
def interface() -> Any:
    """The package's module: it takes seconds to import, and is only there on some machines."""
    return importlib.import_module("flash_attn.cute.interface")
