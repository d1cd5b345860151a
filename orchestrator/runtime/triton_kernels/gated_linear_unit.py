"""Gated activations on a GPU and their gradients, each in one pass over memory.

torch.compile makes gradients of megatron-core's, which put two halves together, kernels that compute both for each
number that they write.
"""

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl

from orchestrator.runtime.triton_kernels.gelu import normal

Gate = Literal["swiglu", "geglu", "geglu_exact"]

_BLOCK, _WARPS = 1024, 4
"""Columns of a program, and by how many warps."""


def gated(x: torch.Tensor, gate: Gate) -> torch.Tensor:
    """activation(first half) · second half: contiguous [n, 2f] give [n, f]. Computed in fp32."""
    count, width = x.size(0), x.size(1) // 2
    out = x.new_empty(count, width)
    blocks = triton.cdiv(width, _BLOCK)
    if count:
        _gated[(count * blocks,)](x, out, width, blocks, gate=gate, block=_BLOCK, num_warps=_WARPS)
    return out


def gated_gradient(gradient: torch.Tensor, x: torch.Tensor, gate: Gate) -> torch.Tensor:
    """Of `gated`'s input, [n, 2f], from that of its output, [n, f]; both contiguous."""
    count, width = gradient.shape
    out = torch.empty_like(x)
    blocks = triton.cdiv(width, _BLOCK)
    if count:
        _gated_gradient[(count * blocks,)](gradient, x, out, width, blocks, gate=gate, block=_BLOCK, num_warps=_WARPS)
    return out


@triton.jit
def _gated(values, out, width, blocks, gate: tl.constexpr, block: tl.constexpr):
    token = (tl.program_id(0) // blocks).to(tl.int64)
    places = tl.program_id(0) % blocks * block + tl.arange(0, block)
    here = places < width
    x = tl.load(values + token * 2 * width + places, mask=here).to(tl.float32)
    up = tl.load(values + token * 2 * width + width + places, mask=here).to(tl.float32)
    active, _ = _activation(x, gate)
    tl.store(out + token * width + places, (active * up).to(out.dtype.element_ty), mask=here)


@triton.jit
def _gated_gradient(gradients, values, out, width, blocks, gate: tl.constexpr, block: tl.constexpr):
    token = (tl.program_id(0) // blocks).to(tl.int64)
    places = tl.program_id(0) % blocks * block + tl.arange(0, block)
    here = places < width
    x = tl.load(values + token * 2 * width + places, mask=here).to(tl.float32)
    up = tl.load(values + token * 2 * width + width + places, mask=here).to(tl.float32)
    gradient = tl.load(gradients + token * width + places, mask=here).to(tl.float32)
    active, slope = _activation(x, gate)
    tl.store(out + token * 2 * width + places, (gradient * up * slope).to(out.dtype.element_ty), mask=here)
    of_up = (gradient * active).to(out.dtype.element_ty)
    tl.store(out + token * 2 * width + width + places, of_up, mask=here)


@triton.jit
def _activation(x, gate: tl.constexpr):
    """The activation of x, and its derivative."""
    if gate == "geglu_exact":
        share = normal(x)
        slope = share + x * 0.3989422804014327 * tl.exp2(-0.7213475204444817 * x * x)
    elif gate == "geglu":
        # (1 + tanh u) / 2 is the sigmoid of 2u.
        square = x * x
        share = tl.sigmoid(x * (1.5957691216057308 + 0.07135481282564775 * square))
        slope = share + x * share * (1.0 - share) * (1.5957691216057308 + 0.21406443847694325 * square)
    else:
        share = tl.sigmoid(x)
        slope = share + x * share * (1.0 - share)
    return x * share, slope
