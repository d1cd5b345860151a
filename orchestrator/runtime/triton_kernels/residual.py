"""What a branch gives, with its bias, dropped and added to the residual stream, in one pass over memory.

Philox (Salmon et al. 2011) gives four numbers at a time. All four are used here; where torch.compile takes one of them
for an element, drawing takes longer than the memory does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROWS, _COLUMNS, _WARPS = 8, 256, 4
"""Of a block that a program drops and adds, and by how many warps."""
_HEIGHT, _BREADTH = 32, 64
"""Of a block of gradients."""
_GROUPS, _SUMMED = 64, 16
"""Rows are in so many groups, each summed for the bias by itself, and a program adds up these sums of so many columns:
more groups, or fewer programs, are waited for.
"""
_NUMBERS = 2**31
"""How many different ones are drawn."""


def drop_and_add(
    x: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor, probability: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """residual + what is kept of (x + bias), divided by how probable that is; and which elements those are, [n, h],
    None where all are. x, residual: [n, h], contiguous, of one dtype; bias: [h]. Draws from the GPU's generator.
    """
    rows, width = x.shape
    out = torch.empty_like(residual)
    seed = kept = None
    if probability:
        seed = torch.randint(2**62, (1,), device=x.device)
        kept = torch.empty(rows, width, dtype=torch.bool, device=x.device)
    grid = (triton.cdiv(rows, _ROWS), triton.cdiv(width, _COLUMNS))
    _add_branch[grid](
        *(x, bias, residual, seed, out, kept, rows, width),
        *(round(probability * _NUMBERS), 1.0 / (1.0 - probability)),
        **{"has_bias": bias is not None, "drops": kept is not None, "height": _ROWS, "breadth": _COLUMNS},
        num_warps=_WARPS,
    )
    return out, kept


def gradients(
    gradient: torch.Tensor, kept: torch.Tensor | None, probability: float, of_bias: torch.dtype | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Of x, [n, h], and of the bias in that dtype, [h], if one is given. `gradient`, contiguous, is of what
    `drop_and_add` returned.
    """
    rows, width = gradient.shape
    of_x = gradient if kept is None else torch.empty_like(gradient)
    if kept is None and of_bias is None:
        return of_x, None
    blocks = triton.cdiv(rows, _HEIGHT * _GROUPS)
    groups = triton.cdiv(rows, _HEIGHT * blocks)
    sums = None
    if of_bias is not None:
        sums = torch.empty(groups, width, dtype=torch.float32, device=gradient.device)
    _branch_gradient[(groups, triton.cdiv(width, _BREADTH))](
        *(gradient, kept, of_x, sums, rows, width, blocks, 1.0 / (1.0 - probability)),
        **{"has_bias": sums is not None, "drops": kept is not None, "height": _HEIGHT, "breadth": _BREADTH},
        num_warps=_WARPS,
    )
    if sums is None:
        return of_x, None
    summed = torch.empty(width, dtype=of_bias, device=gradient.device)
    _sum_of_bias[(triton.cdiv(width, _SUMMED),)](
        sums, summed, groups, width, height=_GROUPS, breadth=_SUMMED, num_warps=_WARPS
    )
    return of_x, summed


@triton.jit
def _add_branch(
    x,
    bias,
    residual,
    seed,
    out,
    kept,
    rows,
    width,
    threshold,
    scale,
    has_bias: tl.constexpr,
    drops: tl.constexpr,
    height: tl.constexpr,
    breadth: tl.constexpr,
):
    row = tl.program_id(0) * height + tl.arange(0, height)
    column = tl.program_id(1) * breadth + tl.arange(0, breadth)
    here = (row < rows)[:, None] & (column < width)[None, :]
    places = row.to(tl.int64)[:, None] * width + column[None, :]
    values = tl.load(x + places, mask=here).to(tl.float32)
    if has_bias:
        values += tl.load(bias + column, mask=column < width).to(tl.float32)[None, :]
    if drops:
        fours = tl.num_programs(1) * (breadth // 4)
        four = tl.program_id(1) * (breadth // 4) + tl.arange(0, breadth // 4)
        first, second, third, fourth = tl.randint4x(tl.load(seed), row[:, None] * fours + four[None, :])
        drawn = tl.reshape(tl.join(tl.join(first, second), tl.join(third, fourth)), (height, breadth))
        keeps = (drawn.to(tl.int32, bitcast=True) & 0x7FFFFFFF) >= threshold
        values = tl.where(keeps, values * scale, 0.0)
        tl.store(kept + places, keeps, mask=here)
    total = tl.load(residual + places, mask=here).to(tl.float32) + values
    tl.store(out + places, total.to(out.dtype.element_ty), mask=here)


@triton.jit
def _branch_gradient(
    gradient,
    kept,
    of_x,
    sums,
    rows,
    width,
    blocks,
    scale,
    has_bias: tl.constexpr,
    drops: tl.constexpr,
    height: tl.constexpr,
    breadth: tl.constexpr,
):
    column = tl.program_id(1) * breadth + tl.arange(0, breadth)
    total = tl.zeros([height, breadth], tl.float32)
    for block in range(blocks):
        row = (tl.program_id(0) * blocks + block) * height + tl.arange(0, height)
        here = (row < rows)[:, None] & (column < width)[None, :]
        places = row.to(tl.int64)[:, None] * width + column[None, :]
        values = tl.load(gradient + places, mask=here, other=0.0).to(tl.float32)
        if drops:
            keeps = tl.load(kept + places, mask=here, other=0) != 0
            values = tl.where(keeps, values * scale, 0.0)
            tl.store(of_x + places, values.to(of_x.dtype.element_ty), mask=here)
        total += values
    if has_bias:
        tl.store(sums + tl.program_id(0).to(tl.int64) * width + column, tl.sum(total, 0), mask=column < width)


@triton.jit
def _sum_of_bias(sums, summed, groups, width, height: tl.constexpr, breadth: tl.constexpr):
    row, column = tl.arange(0, height), tl.program_id(0) * breadth + tl.arange(0, breadth)
    here = (row < groups)[:, None] & (column < width)[None, :]
    total = tl.sum(tl.load(sums + row[:, None] * width + column[None, :], mask=here, other=0.0), 0)
    tl.store(summed + column, total.to(summed.dtype.element_ty), mask=column < width)
