"""RMSNorm and LayerNorm on a GPU, of rows of any width, and their gradients, each in one pass over memory.

Programs sum what the weights get over rows of their own, in fp32, and a second kernel adds these sums up: in the same
order each time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

_TILE = 4096
"""Numbers that a program reads at a time."""
_STAGES = 3
"""Of these a program has begun to read at a time in the backward pass: with one it waits for memory."""
_GROUPS, _SUMMED = 256, 16
"""Rows are in so many groups, each summed by a program, and a program adds up the sums of so many columns."""


class Normed(NamedTuple):
    """Rows, and what their gradient needs."""

    rows: torch.Tensor
    means: torch.Tensor | None
    """[n], in fp32; None of RMSNorm."""
    inverses: torch.Tensor
    """[n], in fp32: one over the deviation."""


def normalize(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, *, is_rms: bool, adds_one: bool
) -> Normed:
    """Rows of contiguous [n, h] times their weight [h], to which one is added where they are zero-centred. In fp32."""
    rows, width = x.shape
    out, inverses = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
    means = None if is_rms else torch.empty_like(inverses)
    height, breadth, warps = _tile(width)
    if rows:
        _norm[(triton.cdiv(rows, height),)](
            *(x, weight, bias, out, means, inverses, rows, width, eps),
            **{"is_rms": is_rms, "adds_one": adds_one, "has_bias": bias is not None},
            **{"height": height, "breadth": breadth, "num_warps": warps},
        )
    return Normed(out, means, inverses)


def gradients(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    normed: tuple[torch.Tensor | None, torch.Tensor],
    *,
    has_bias: bool,
    adds_one: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Of x, weight and bias from that of the rows, [n, h], contiguous; `normed`: their means and inverses."""
    rows, width = x.shape
    means, inverses = normed
    of_x = torch.empty_like(x)
    height, breadth, warps = _tile(width)
    groups = max(min(_GROUPS, triton.cdiv(rows, height)), 1)
    sums = torch.empty(1 + has_bias, groups, width, dtype=torch.float32, device=x.device)
    _norm_gradient[(groups,)](
        *(gradient, x, weight, means, inverses, of_x, sums, rows, width),
        **{"is_rms": means is None, "adds_one": adds_one, "has_bias": has_bias},
        **{"height": height, "breadth": breadth, "stages": _STAGES, "num_warps": warps},
    )
    summed = torch.empty(1 + has_bias, width, dtype=weight.dtype, device=x.device)
    _sum_of_norm[(triton.cdiv(width, _SUMMED), 1 + has_bias)](
        sums, summed, groups, width, height=_GROUPS, breadth=_SUMMED, num_warps=4
    )
    return of_x, summed[0], summed[1] if has_bias else None


def _tile(width: int) -> tuple[int, int, int]:
    """Rows and columns that a program reads at a time, and by how many warps."""
    breadth = triton.next_power_of_2(width)
    height = max(_TILE // breadth, 1)
    return height, breadth, max(height * breadth // 512, 4)


@triton.jit
def _norm(
    x,
    weight,
    bias,
    out,
    means,
    inverses,
    rows,
    width,
    eps,
    is_rms: tl.constexpr,
    adds_one: tl.constexpr,
    has_bias: tl.constexpr,
    height: tl.constexpr,
    breadth: tl.constexpr,
):
    row, column = tl.program_id(0) * height + tl.arange(0, height), tl.arange(0, breadth)
    within = column < width
    here = (row < rows)[:, None] & within[None, :]
    places = row.to(tl.int64)[:, None] * width + column[None, :]
    values = tl.load(x + places, mask=here, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=within, other=0.0).to(tl.float32)
    if adds_one:
        scale += 1.0
    if not is_rms:
        mean = tl.sum(values, 1) / width
        tl.store(means + row, mean, mask=row < rows)
        values = tl.where(here, values - mean[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(values * values, 1) / width + eps)
    tl.store(inverses + row, inverse, mask=row < rows)
    normed = values * inverse[:, None] * scale[None, :]
    if has_bias:
        normed += tl.load(bias + column, mask=within, other=0.0).to(tl.float32)[None, :]
    tl.store(out + places, normed.to(out.dtype.element_ty), mask=here)


@triton.jit
def _norm_gradient(
    gradients,
    x,
    weight,
    means,
    inverses,
    of_x,
    sums,
    rows,
    width,
    is_rms: tl.constexpr,
    adds_one: tl.constexpr,
    has_bias: tl.constexpr,
    height: tl.constexpr,
    breadth: tl.constexpr,
    stages: tl.constexpr,
):
    column = tl.arange(0, breadth)
    within = column < width
    scale = tl.load(weight + column, mask=within, other=0.0).to(tl.float32)
    if adds_one:
        scale += 1.0
    of_weight = tl.zeros([height, breadth], tl.float32)
    of_bias = tl.zeros([height, breadth], tl.float32)
    groups = tl.num_programs(0)
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, height), groups, num_stages=stages):
        row = block * height + tl.arange(0, height)
        here = (row < rows)[:, None] & within[None, :]
        places = row.to(tl.int64)[:, None] * width + column[None, :]
        normed = tl.load(x + places, mask=here, other=0.0).to(tl.float32)
        gradient = tl.load(gradients + places, mask=here, other=0.0).to(tl.float32)
        inverse = tl.load(inverses + row, mask=row < rows, other=0.0)
        if not is_rms:
            mean = tl.load(means + row, mask=row < rows, other=0.0)
            normed = tl.where(here, normed - mean[:, None], 0.0)
        normed *= inverse[:, None]
        of_weight += gradient * normed
        if has_bias:
            of_bias += gradient
        scaled = gradient * scale[None, :]
        along = scaled - normed * (tl.sum(scaled * normed, 1) / width)[:, None]
        if not is_rms:
            along -= (tl.sum(scaled, 1) / width)[:, None]
        tl.store(of_x + places, (along * inverse[:, None]).to(of_x.dtype.element_ty), mask=here)
    group = tl.program_id(0).to(tl.int64)
    tl.store(sums + group * width + column, tl.sum(of_weight, 0), mask=within)
    if has_bias:
        tl.store(sums + (groups + group) * width + column, tl.sum(of_bias, 0), mask=within)


@triton.jit
def _sum_of_norm(sums, summed, groups, width, height: tl.constexpr, breadth: tl.constexpr):
    which = tl.program_id(1).to(tl.int64)
    row, column = tl.arange(0, height), tl.program_id(0) * breadth + tl.arange(0, breadth)
    here = (row < groups)[:, None] & (column < width)[None, :]
    places = (which * groups + row)[:, None] * width + column[None, :]
    total = tl.sum(tl.load(sums + places, mask=here, other=0.0), 0)
    tl.store(summed + which * width + column, total.to(summed.dtype.element_ty), mask=column < width)
