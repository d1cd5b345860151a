"""Weight gradients of all experts of a rank on a GPU, in one kernel: each expert sums over as many tokens as it has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Tiling(NamedTuple):
    """What a program computes at a time."""

    outputs: int
    inputs: int
    tokens: int
    rows_together: int
    """Rows of tiles that run side by side, so that they find their inputs in the cache."""
    warps: int
    stages: int


LARGE = Tiling(outputs=128, inputs=256, tokens=64, rows_together=4, warps=8, stages=4)
SMALL = Tiling(outputs=128, inputs=128, tokens=32, rows_together=8, warps=4, stages=5)
"""The fastest of nine in five shapes on an H200, and the fastest of those in less shared memory."""
_SHARED_BYTES = 196608
"""What LARGE takes; SMALL takes 80 KiB."""
_ALIGNED = 16
"""Bytes, and numbers of a row: what begins at a multiple of them is read by wider instructions."""
_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def add_products(
    inputs: torch.Tensor,
    of_output: torch.Tensor,
    buffers: Sequence[torch.Tensor],
    tokens: Sequence[int],
    *,
    adds: bool,
    with_bias: bool,
    tiling: Tiling | None = None,
) -> torch.Tensor | None:
    """Add to each expert's buffer [out, in] of_outputᵀ · inputs over its tokens, or write it (`adds` false).

    inputs: [n, in], of_output: [n, out], contiguous, in 16 bits, an expert's tokens after another's; tokens: how many
    of each. Returns the gradients of biases [experts, out] in fp32, None without `with_bias`. Sums are in fp32.
    """
    tiling = tiling or _tiling(inputs.device)
    width, height = inputs.size(1), of_output.size(1)
    addresses = tuple(each.data_ptr() for each in buffers)
    of_bias = inputs.new_empty(len(buffers), height, dtype=torch.float32) if with_bias else None
    rows, columns = triton.cdiv(height, tiling.outputs), triton.cdiv(width, tiling.inputs)
    _add_products[(len(buffers) * rows * columns,)](
        inputs,
        of_output,
        _on_gpu(addresses, inputs.device),
        _ends(tokens, inputs.device),
        inputs if of_bias is None else of_bias,
        width,
        height,
        rows,
        columns,
        dtype=_DTYPES[buffers[0].dtype],
        adds=adds,
        with_bias=with_bias,
        aligned=all(address % _ALIGNED == 0 for address in addresses),
        whole=height % tiling.outputs == 0 and width % tiling.inputs == 0,
        out_block=tiling.outputs,
        in_block=tiling.inputs,
        token_block=tiling.tokens,
        rows_together=tiling.rows_together,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return of_bias


@cache
def _tiling(device: torch.device) -> Tiling:
    return LARGE if torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= _SHARED_BYTES else SMALL


@lru_cache(maxsize=4096)
def _on_gpu(addresses: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """[experts]; buffers of gradients stay where they are for a whole training."""
    return torch.tensor(addresses, dtype=torch.int64, device=device)


def _ends(tokens: Sequence[int], device: torch.device) -> torch.Tensor:
    """Behind each expert's last token, [experts]. From pinned memory, so that the host does not wait for the GPU."""
    return torch.tensor(list(accumulate(tokens)), dtype=torch.int32, pin_memory=True).to(device, non_blocking=True)


@triton.jit
def _add_products(
    inputs,
    of_output,
    addresses,
    ends,
    of_bias,
    width,
    height,
    rows,
    columns,
    dtype: tl.constexpr,
    adds: tl.constexpr,
    with_bias: tl.constexpr,
    aligned: tl.constexpr,
    whole: tl.constexpr,
    out_block: tl.constexpr,
    in_block: tl.constexpr,
    token_block: tl.constexpr,
    rows_together: tl.constexpr,
):
    program = tl.program_id(0)
    expert = program // (rows * columns)
    tile = program % (rows * columns)
    first = tile // (rows_together * columns) * rows_together
    together = min(rows - first, rows_together)
    place = tile % (rows_together * columns)
    row, column = first + place % together, place // together
    begin = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    count = tl.load(ends + expert) - begin

    outs = row * out_block + tl.arange(0, out_block)
    ins = column * in_block + tl.arange(0, in_block)
    steps = tl.arange(0, token_block)
    left_at = of_output + begin.to(tl.int64) * height + steps[:, None] * height + outs[None, :]
    right_at = inputs + begin.to(tl.int64) * width + steps[:, None] * width + ins[None, :]
    total = tl.zeros((out_block, in_block), dtype=tl.float32)
    bias = tl.zeros((out_block,), dtype=tl.float32)
    for done in range(0, count, token_block):
        there = (done + steps)[:, None] < count
        if whole:
            left = tl.load(left_at, mask=there, other=0.0)
            right = tl.load(right_at, mask=there, other=0.0)
        else:
            left = tl.load(left_at, mask=there & (outs < height)[None, :], other=0.0)
            right = tl.load(right_at, mask=there & (ins < width)[None, :], other=0.0)
        total = tl.dot(tl.trans(left), right, total)
        if with_bias:
            bias += tl.sum(left.to(tl.float32), axis=0)
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
    if with_bias and column == 0:
        tl.store(of_bias + expert.to(tl.int64) * height + outs, bias, mask=outs < height)
