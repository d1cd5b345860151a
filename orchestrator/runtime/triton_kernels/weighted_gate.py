"""Gated activations of experts on a GPU, and their gradients: each token weighted as the router weighted it, in one
kernel each.

Every gate is x · sigmoid(slope · x · (1 + cubic · x²)): SiLU's slope is 1, and the tanh approximation of GeLU is one
as well, as (1 + tanh(u)) / 2 = sigmoid(2u).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from orchestrator.kernel_selection.experts import Gate

_BLOCK, _WARPS = 1024, 4
"""Columns that a program computes at a time, and by how many warps."""


def weighted_gate(gated: torch.Tensor, weights: torch.Tensor, gate: Gate) -> torch.Tensor:
    """gate(x) · (up + offset) · weight of each token: [n, 2f] of x and up, and [n], give [n, f]. Computed in fp32."""
    count, width = gated.size(0), gated.size(1) // 2
    out = gated.new_empty(count, width)
    if count:
        grid = (count, triton.cdiv(width, _BLOCK))
        _weighted_gate[grid](gated, weights, out, width, *gate, block=_BLOCK, num_warps=_WARPS)
    return out


def weighted_gate_gradient(
    gradient: torch.Tensor, gated: torch.Tensor, weights: torch.Tensor, gate: Gate
) -> tuple[torch.Tensor, torch.Tensor]:
    """From the gradient [n, f] of what `weighted_gate` gives, those of its inputs, [n, 2f] and [n]."""
    of_gated, of_weights = torch.empty_like(gated), torch.empty_like(weights)
    if gated.size(0):
        width = gated.size(1) // 2
        _weighted_gate_gradient[(gated.size(0),)](
            gradient, gated, weights, of_gated, of_weights, width, *gate, block=_BLOCK, num_warps=_WARPS
        )
    return of_gated, of_weights


@triton.jit
def _factors(at, width, here, slope: tl.constexpr, cubic: tl.constexpr, limit: tl.constexpr, offset: tl.constexpr):
    """x, sigmoid(z) of it, dz / dx, and what it is multiplied by; and whether each of both factors was left as it was.

    What is no number stays none: it is not above the limit.
    """
    x = tl.load(at, mask=here, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=here, other=0.0).to(tl.float32)
    x_is_free, up_is_free = here, here
    if limit is not None:
        x_is_free, up_is_free = x <= limit, tl.abs(up) <= limit
        x = tl.where(x > limit, limit, x)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    if cubic == 0:
        share = tl.sigmoid(slope * x)
        steepness = slope
    else:
        share = tl.sigmoid(slope * x * (1.0 + cubic * x * x))
        steepness = slope * (1.0 + 3.0 * cubic * x * x)
    return x, share, steepness, up + offset, x_is_free, up_is_free


@triton.jit
def _weighted_gate(
    gated,
    weights,
    out,
    width,
    slope: tl.constexpr,
    cubic: tl.constexpr,
    limit: tl.constexpr,
    offset: tl.constexpr,
    block: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * block + tl.arange(0, block)
    here = places < width
    x, share, _, up, _, _ = _factors(gated + token * 2 * width + places, width, here, slope, cubic, limit, offset)
    weight = tl.load(weights + token).to(tl.float32)
    tl.store(out + token * width + places, (x * share * up * weight).to(out.dtype.element_ty), mask=here)


@triton.jit
def _weighted_gate_gradient(
    gradients,
    gated,
    weights,
    of_gated,
    of_weights,
    width,
    slope: tl.constexpr,
    cubic: tl.constexpr,
    limit: tl.constexpr,
    offset: tl.constexpr,
    block: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    weight = tl.load(weights + token).to(tl.float32)
    of_weight = tl.zeros((block,), dtype=tl.float32)
    for first in range(0, width, block):
        places = first + tl.arange(0, block)
        here = places < width
        x, share, steepness, up, x_is_free, up_is_free = _factors(
            gated + token * 2 * width + places, width, here, slope, cubic, limit, offset
        )
        gradient = tl.load(gradients + token * width + places, mask=here, other=0.0).to(tl.float32)
        value = x * share
        of_weight += gradient * value * up
        of_value = gradient * weight
        of_x = of_value * up * share * (1.0 + x * steepness * (1.0 - share))
        of_up = of_value * value
        if limit is not None:
            of_x = tl.where(x_is_free, of_x, 0.0)
            of_up = tl.where(up_is_free, of_up, 0.0)
        target = of_gated + token * 2 * width + places
        tl.store(target, of_x.to(of_gated.dtype.element_ty), mask=here)
        tl.store(target + width, of_up.to(of_gated.dtype.element_ty), mask=here)
    tl.store(of_weights + token, tl.sum(of_weight, 0).to(of_weights.dtype.element_ty))
