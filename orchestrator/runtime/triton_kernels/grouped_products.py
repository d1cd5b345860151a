"""Matrix products of all experts of a rank on a GPU, in one kernel: each expert has tokens of its own number.

An expert's tokens are rows that follow one another, behind those of the expert before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl


class Tiling(NamedTuple):
    """What a program computes at a time: a tile of the result, in steps along what is summed."""

    rows: int
    columns: int
    step: int
    rows_together: int
    """Rows of tiles that run side by side, so that they find their inputs in the cache."""
    warps: int
    stages: int


WIDE = Tiling(rows=128, columns=256, step=64, rows_together=4, warps=8, stages=4)
TALL = Tiling(rows=256, columns=128, step=64, rows_together=4, warps=8, stages=4)
SMALL = Tiling(rows=128, columns=128, step=32, rows_together=8, warps=4, stages=5)
"""The fastest of nine in five shapes on an H200: WIDE, but TALL where weights are transposed, and SMALL in less shared
memory. Reading through tensor descriptors (TMA) took up to 28 % longer.
"""
_SHARED_BYTES = 196608
"""What WIDE and TALL take; SMALL takes 80 KiB."""
_ALIGNED = 16
"""Bytes: what begins at a multiple of them is read by wider instructions."""
DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def multiply(
    inputs: torch.Tensor,
    weights: Sequence[torch.Tensor],
    tokens: Sequence[int],
    *,
    transposed: bool,
    biases: Sequence[torch.Tensor] = (),
    shares: torch.Tensor | None = None,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """Each expert's rows times its weight [out, in], or times its transpose: [n, in] gives [n, out] with `transposed`,
    [n, out] gives [n, in] without. An expert's bias is added to each of its rows, times the row's share [n].

    inputs are contiguous and in 16 bits, as weights and biases are; tokens: the rows of each expert. Sums are in fp32.
    """
    tiling = tiling or _tiling(inputs.device, TALL if transposed else WIDE)
    height, width = weights[0].shape
    summed, columns = (width, height) if transposed else (height, width)
    out = inputs.new_empty(inputs.size(0), columns)
    addresses = tuple(each.data_ptr() for each in weights)
    tiles = triton.cdiv(columns, tiling.columns)
    programs = tiles * sum(triton.cdiv(count, tiling.rows) for count in tokens)
    if not programs:
        return out
    _multiply[(programs,)](
        inputs,
        on_gpu(addresses, inputs.device),
        on_gpu(tuple(each.data_ptr() for each in biases), inputs.device) if biases else inputs,
        inputs if shares is None else shares,
        ends_of(tuple(tokens), inputs.device),
        out,
        len(weights),
        summed,
        columns,
        tiles,
        transposed=transposed,
        with_bias=bool(biases),
        with_shares=shares is not None,
        aligned=_are_aligned(addresses),
        whole=summed % tiling.step == 0 and columns % tiling.columns == 0,
        experts_block=triton.next_power_of_2(len(weights)),
        row_block=tiling.rows,
        column_block=tiling.columns,
        step=tiling.step,
        rows_together=tiling.rows_together,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return out


def add_products(
    inputs: torch.Tensor,
    of_output: torch.Tensor,
    buffers: Sequence[torch.Tensor],
    tokens: Sequence[int],
    *,
    adds: bool,
    tiling: Tiling | None = None,
) -> None:
    """Add to each expert's buffer [out, in] of_outputᵀ · inputs over its tokens, or write it (`adds` false).

    inputs: [n, in], of_output: [n, out], contiguous and in 16 bits; tokens: the rows of each expert. Sums are in fp32.
    """
    tiling = tiling or _tiling(inputs.device, WIDE)
    width, height = inputs.size(1), of_output.size(1)
    addresses = tuple(each.data_ptr() for each in buffers)
    rows, columns = triton.cdiv(height, tiling.rows), triton.cdiv(width, tiling.columns)
    _add_products[(len(buffers) * rows * columns,)](
        inputs,
        of_output,
        on_gpu(addresses, inputs.device),
        ends_of(tuple(tokens), inputs.device),
        width,
        height,
        rows,
        columns,
        dtype=DTYPES[buffers[0].dtype],
        adds=adds,
        aligned=_are_aligned(addresses),
        whole=height % tiling.rows == 0 and width % tiling.columns == 0,
        out_block=tiling.rows,
        in_block=tiling.columns,
        token_block=tiling.step,
        rows_together=tiling.rows_together,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )


@cache
def _tiling(device: torch.device, best: Tiling) -> Tiling:
    properties: Any = torch.cuda.get_device_properties(device)
    return best if properties.shared_memory_per_block_optin >= _SHARED_BYTES else SMALL


@lru_cache(maxsize=4096)
def on_gpu(addresses: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """[experts]; buffers of gradients stay where they are for a whole training, but those of FSDP: the host waits for
    neither.
    """
    return torch.tensor(addresses, dtype=torch.int64, pin_memory=True).to(device, non_blocking=True)


@lru_cache(maxsize=4)
def ends_of(tokens: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Behind each expert's last token, [experts]: once for the products of a layer. From pinned memory, so that the
    host does not wait for the GPU.
    """
    return torch.tensor(list(accumulate(tokens)), dtype=torch.int32, pin_memory=True).to(device, non_blocking=True)


def _are_aligned(addresses: tuple[int, ...]) -> bool:
    return all(address % _ALIGNED == 0 for address in addresses)


@triton.jit
def _tile(place, rows, columns, rows_together: tl.constexpr):
    """Which row and column of tiles a program has."""
    first = place // (rows_together * columns) * rows_together
    together = min(rows - first, rows_together)
    inside = place % (rows_together * columns)
    return first + inside % together, inside // together


@triton.jit
def _multiply(
    inputs,
    addresses,
    biases,
    shares,
    ends,
    out,
    experts,
    summed,
    columns,
    column_tiles,
    transposed: tl.constexpr,
    with_bias: tl.constexpr,
    with_shares: tl.constexpr,
    aligned: tl.constexpr,
    whole: tl.constexpr,
    experts_block: tl.constexpr,
    row_block: tl.constexpr,
    column_block: tl.constexpr,
    step: tl.constexpr,
    rows_together: tl.constexpr,
):
    program = tl.program_id(0)
    numbers = tl.arange(0, experts_block)
    there = numbers < experts
    row_tiles = tl.cdiv(
        tl.load(ends + numbers, mask=there, other=0) - tl.load(ends + numbers - 1, mask=there & (numbers > 0), other=0),
        row_block,
    )
    until = tl.cumsum(tl.where(there, row_tiles, 0) * column_tiles, 0)
    expert = tl.sum((until <= program).to(tl.int32), 0)
    before = tl.max(tl.where(numbers < expert, until, 0), 0)
    begin = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    end = tl.load(ends + expert)
    row, column = _tile(program - before, tl.cdiv(end - begin, row_block), column_tiles, rows_together)

    rows = begin + row * row_block + tl.arange(0, row_block)
    places = column * column_block + tl.arange(0, column_block)
    steps = tl.arange(0, step)
    weight = tl.load(addresses + expert).to(tl.pointer_type(inputs.dtype.element_ty))
    if aligned:
        weight = tl.multiple_of(weight, 16)
    # Rows behind an expert's last are computed from the last one, and not stored; so are columns that are rows of the
    # weight.
    left_at = inputs + tl.minimum(rows, end - 1)[:, None].to(tl.int64) * summed + steps[None, :]
    if transposed:
        right_at = weight + tl.minimum(places, columns - 1)[:, None].to(tl.int64) * summed + steps[None, :]
    else:
        right_at = weight + steps[:, None] * columns + places[None, :]
    total = tl.zeros((row_block, column_block), dtype=tl.float32)
    for done in range(0, summed, step):
        if whole:
            left = tl.load(left_at)
            right = tl.load(right_at)
        else:
            here = done + steps < summed
            left = tl.load(left_at, mask=here[None, :], other=0.0)
            if transposed:
                right = tl.load(right_at, mask=here[None, :], other=0.0)
            else:
                right = tl.load(right_at, mask=here[:, None] & (places < columns)[None, :], other=0.0)
        total = tl.dot(left, tl.trans(right) if transposed else right, total)
        left_at += step
        right_at += step if transposed else step * columns
    if with_bias:
        bias = tl.load(biases + expert).to(tl.pointer_type(inputs.dtype.element_ty))
        added = tl.load(bias + places, mask=places < columns, other=0.0).to(tl.float32)[None, :]
        if with_shares:
            added *= tl.load(shares + rows, mask=rows < end, other=0.0).to(tl.float32)[:, None]
        total += added
    target = out + rows[:, None].to(tl.int64) * columns + places[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=(rows < end)[:, None] & (places < columns)[None, :])


@triton.jit
def _add_products(
    inputs,
    of_output,
    addresses,
    ends,
    width,
    height,
    rows,
    columns,
    dtype: tl.constexpr,
    adds: tl.constexpr,
    aligned: tl.constexpr,
    whole: tl.constexpr,
    out_block: tl.constexpr,
    in_block: tl.constexpr,
    token_block: tl.constexpr,
    rows_together: tl.constexpr,
):
    program = tl.program_id(0)
    expert = program // (rows * columns)
    row, column = _tile(program % (rows * columns), rows, columns, rows_together)
    begin = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    count = tl.load(ends + expert) - begin

    outs = row * out_block + tl.arange(0, out_block)
    ins = column * in_block + tl.arange(0, in_block)
    steps = tl.arange(0, token_block)
    left_at = of_output + begin.to(tl.int64) * height + steps[:, None] * height + outs[None, :]
    right_at = inputs + begin.to(tl.int64) * width + steps[:, None] * width + ins[None, :]
    total = tl.zeros((out_block, in_block), dtype=tl.float32)
    for done in range(0, count, token_block):
        there = (done + steps)[:, None] < count
        if whole:
            left = tl.load(left_at, mask=there, other=0.0)
            right = tl.load(right_at, mask=there, other=0.0)
        else:
            left = tl.load(left_at, mask=there & (outs < height)[None, :], other=0.0)
            right = tl.load(right_at, mask=there & (ins < width)[None, :], other=0.0)
        total = tl.dot(tl.trans(left), right, total)
        left_at += token_block * height
        right_at += token_block * width

    buffer = tl.load(addresses + expert).to(tl.pointer_type(dtype))
    if aligned:
        buffer = tl.multiple_of(buffer, 16)
    target = buffer + outs[:, None].to(tl.int64) * width + ins[None, :]
    inside = (outs < height)[:, None] & (ins < width)[None, :]
    if adds:
        total += tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, total.to(dtype), mask=inside)
