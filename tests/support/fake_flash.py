"""FlashAttention 4's two inner functions by torch's operations, in the layout and with the checks of the package."""

from __future__ import annotations

from typing import Any

import torch


class FakeFlash:
    """`flash_attn.cute.interface`; it keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[dict[str, torch.Tensor]] = []

    def _flash_attn_fwd(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
        return_lse: bool = False,
        out: torch.Tensor | None = None,
    ) -> tuple[Any, ...]:
        assert causal
        assert return_lse
        assert out is not None
        assert softmax_scale is not None
        _check(q, k, v, out)
        self.calls.append({"q": q, "k": k, "v": v, "out": out})
        found, lse = attention(q, k, v, softmax_scale)
        out.copy_(found)
        return out, lse, None, None, None

    def _flash_attn_bwd(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        dout: torch.Tensor,
        lse: torch.Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
        softcap: float = 0.0,
        dq: torch.Tensor | None = None,
        dk: torch.Tensor | None = None,
        dv: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        assert causal
        assert softcap == 0.0
        assert softmax_scale is not None
        assert dq is not None
        assert dk is not None
        assert dv is not None
        _check(q, k, v, out, dout, dq, dk, dv)
        assert lse.shape == (q.size(0), q.size(2), q.size(1))
        self.calls.append({"q": q, "k": k, "v": v, "out": out, "dout": dout, "dq": dq, "dk": dk, "dv": dv})
        with torch.enable_grad():
            inputs = [each.detach().clone().requires_grad_() for each in (q, k, v)]
            found, again = attention(*inputs, softmax_scale)
        torch.testing.assert_close(again, lse)
        torch.testing.assert_close(found, out, msg="the output that the forward pass gave")
        for given, gradient in zip((dq, dk, dv), torch.autograd.grad(found, inputs, dout), strict=True):
            given.copy_(gradient)
        return dq, dk, dv


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of [b, s, heads, d] and groups, and the logarithm of each row's sum, [b, heads, s]."""
    each = q.size(2) // k.size(2)
    k, v = k.repeat_interleave(each, 2), v.repeat_interleave(each, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1)


def _check(*tensors: torch.Tensor) -> None:
    """What the package takes without copying it."""
    for each in tensors:
        aligned = [stride * each.element_size() % 16 == 0 for stride in each.stride()[:-1]]
        assert each.dim() == 4
        assert each.stride(-1) == 1
        assert all(aligned)
        assert each.data_ptr() % 16 == 0
