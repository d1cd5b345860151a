"""Experts' biases on a GPU, their gradients, and those of the shares that weighted them, all experts of a rank in one
kernel.

An expert's tokens are rows that follow one another, behind those of the expert before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from orchestrator.runtime.triton_kernels.grouped_products import DTYPES, ends_of, on_gpu

_ROWS, _COLUMNS = 128, 64
"""What a program sums up at a time: rows of a cache line each."""
_BLOCK, _WARPS = 1024, 4
"""Columns that a program multiplies at a time, and by how many warps."""


def add_biases(
    outputs: torch.Tensor, biases: Sequence[torch.Tensor], tokens: Sequence[int], shares: torch.Tensor
) -> None:
    """Add to each expert's rows [n, out], in place, its bias [out] times the row's share [n]."""
    _start(_add_biases, outputs, biases, tokens, shares)


def add_bias_gradients(
    of_output: torch.Tensor,
    buffers: Sequence[torch.Tensor],
    tokens: Sequence[int],
    *,
    adds: bool,
    shares: torch.Tensor | None = None,
) -> None:
    """Add the sum of each expert's rows [n, out], times their shares [n], to its buffer [out], or write it (`adds`
    false). tokens: the rows of each expert. Sums are in fp32.
    """
    width = of_output.size(1)
    _add_bias_gradients[(triton.cdiv(width, _COLUMNS), len(buffers))](
        of_output,
        of_output if shares is None else shares,
        on_gpu(tuple(each.data_ptr() for each in buffers), of_output.device),
        ends_of(tuple(tokens), of_output.device),
        width,
        dtype=DTYPES[buffers[0].dtype],
        adds=adds,
        with_shares=shares is not None,
        row_block=_ROWS,
        column_block=_COLUMNS,
        num_warps=_WARPS,
    )


def add_share_gradients(
    of_output: torch.Tensor, biases: Sequence[torch.Tensor], tokens: Sequence[int], of_shares: torch.Tensor
) -> None:
    """Add the product of each row [n, out] and its expert's bias [out] to the gradient [n] of the row's share."""
    _start(_add_share_gradients, of_output, biases, tokens, of_shares)


def _start(
    kernel: Any, rows: torch.Tensor, biases: Sequence[torch.Tensor], tokens: Sequence[int], of_rows: torch.Tensor
) -> None:
    """Start a kernel whose programs have a row each."""
    count, width = rows.shape
    if count:
        kernel[(count,)](
            rows,
            on_gpu(tuple(each.data_ptr() for each in biases), rows.device),
            ends_of(tuple(tokens), rows.device),
            of_rows,
            len(biases),
            width,
            experts_block=triton.next_power_of_2(len(biases)),
            block=_BLOCK,
            num_warps=_WARPS,
        )


@triton.jit
def _bias_of(row, addresses, ends, experts, dtype: tl.constexpr, experts_block: tl.constexpr):
    """Where the bias of a row's expert is."""
    numbers = tl.arange(0, experts_block)
    expert = tl.sum((tl.load(ends + numbers, mask=numbers < experts, other=row + 1) <= row).to(tl.int32), 0)
    return tl.load(addresses + expert).to(tl.pointer_type(dtype))


@triton.jit
def _add_biases(outputs, addresses, ends, shares, experts, width, experts_block: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0)
    bias = _bias_of(row, addresses, ends, experts, outputs.dtype.element_ty, experts_block)
    share = tl.load(shares + row).to(tl.float32)
    for first in range(0, width, block):
        places = first + tl.arange(0, block)
        here = places < width
        target = outputs + row.to(tl.int64) * width + places
        total = tl.load(target, mask=here).to(tl.float32) + share * tl.load(bias + places, mask=here).to(tl.float32)
        tl.store(target, total.to(outputs.dtype.element_ty), mask=here)


@triton.jit
def _add_bias_gradients(
    of_output,
    shares,
    addresses,
    ends,
    width,
    dtype: tl.constexpr,
    adds: tl.constexpr,
    with_shares: tl.constexpr,
    row_block: tl.constexpr,
    column_block: tl.constexpr,
):
    expert = tl.program_id(1)
    begin = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    end = tl.load(ends + expert)
    places = tl.program_id(0) * column_block + tl.arange(0, column_block)
    total = tl.zeros((row_block, column_block), dtype=tl.float32)
    for first in range(begin, end, row_block):
        rows = first + tl.arange(0, row_block)
        here = (rows < end)[:, None] & (places < width)[None, :]
        each = tl.load(of_output + rows[:, None].to(tl.int64) * width + places[None, :], mask=here, other=0.0)
        if with_shares:
            total += each.to(tl.float32) * tl.load(shares + rows, mask=rows < end, other=0.0).to(tl.float32)[:, None]
        else:
            total += each.to(tl.float32)
    sums = tl.sum(total, 0)
    target = tl.load(addresses + expert).to(tl.pointer_type(dtype)) + places
    if adds:
        sums += tl.load(target, mask=places < width, other=0.0).to(tl.float32)
    tl.store(target, sums.to(dtype), mask=places < width)


@triton.jit
def _add_share_gradients(
    of_output, addresses, ends, of_shares, experts, width, experts_block: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(0)
    bias = _bias_of(row, addresses, ends, experts, of_output.dtype.element_ty, experts_block)
    total = tl.zeros((block,), dtype=tl.float32)
    for first in range(0, width, block):
        places = first + tl.arange(0, block)
        here = places < width
        each = tl.load(of_output + row.to(tl.int64) * width + places, mask=here, other=0.0).to(tl.float32)
        total += each * tl.load(bias + places, mask=here, other=0.0).to(tl.float32)
    earlier = tl.load(of_shares + row).to(tl.float32)
    tl.store(of_shares + row, (earlier + tl.sum(total, 0)).to(of_shares.dtype.element_ty))
