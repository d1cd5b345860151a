"""SwiGLU of experts on a GPU, and its gradient: each token weighted as the router weighted it, in one kernel each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK, _WARPS = 1024, 4
"""Columns that a program computes at a time, and by how many warps."""


def weighted_swiglu(gated: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up · weight of each token: [n, 2f] of gate and up, and [n], give [n, f]. Computed in fp32."""
    count, width = gated.size(0), gated.size(1) // 2
    out = gated.new_empty(count, width)
    if count:
        grid = (count, triton.cdiv(width, _BLOCK))
        _forward[grid](gated, weights, out, width, block=_BLOCK, num_warps=_WARPS)
    return out


def weighted_swiglu_gradient(
    gradient: torch.Tensor, gated: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """From the gradient [n, f] of what `weighted_swiglu` gives, those of its inputs, [n, 2f] and [n]."""
    of_gated, of_weights = torch.empty_like(gated), torch.empty_like(weights)
    if gated.size(0):
        width = gated.size(1) // 2
        _backward[(gated.size(0),)](
            gradient, gated, weights, of_gated, of_weights, width, block=_BLOCK, num_warps=_WARPS
        )
    return of_gated, of_weights


@triton.jit
def _forward(gated, weights, out, width, block: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * block + tl.arange(0, block)
    here = places < width
    gate = tl.load(gated + token * 2 * width + places, mask=here).to(tl.float32)
    up = tl.load(gated + token * 2 * width + width + places, mask=here).to(tl.float32)
    weight = tl.load(weights + token).to(tl.float32)
    tl.store(out + token * width + places, (gate * tl.sigmoid(gate) * up * weight).to(out.dtype.element_ty), mask=here)


@triton.jit
def _backward(gradients, gated, weights, of_gated, of_weights, width, block: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    weight = tl.load(weights + token).to(tl.float32)
    of_weight = tl.zeros((block,), dtype=tl.float32)
    for first in range(0, width, block):
        places = first + tl.arange(0, block)
        here = places < width
        gate = tl.load(gated + token * 2 * width + places, mask=here, other=0.0).to(tl.float32)
        up = tl.load(gated + token * 2 * width + width + places, mask=here, other=0.0).to(tl.float32)
        gradient = tl.load(gradients + token * width + places, mask=here, other=0.0).to(tl.float32)
        share = tl.sigmoid(gate)
        silu = gate * share
        of_weight += gradient * silu * up
        of_value = gradient * weight
        of_gate = of_value * up * share * (1.0 + gate * (1.0 - share))
        tl.store(of_gated + token * 2 * width + places, of_gate.to(of_gated.dtype.element_ty), mask=here)
        of_up = (of_value * silu).to(of_gated.dtype.element_ty)
        tl.store(of_gated + token * 2 * width + width + places, of_up, mask=here)
    tl.store(of_weights + token, tl.sum(of_weight, 0).to(of_weights.dtype.element_ty))
