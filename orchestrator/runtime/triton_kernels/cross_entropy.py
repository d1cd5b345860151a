"""`Rows` on a GPU: each pass reads the logits once, and the backward pass writes their gradient in their place.

The sum of exponentials is corrected as larger logits are met (Milakov and Gimelshein 2018), per lane of a block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK, _WARPS = 4096, 8
_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)


def statistics(logits: torch.Tensor, targets: torch.Tensor, valid: int) -> torch.Tensor:
    """See Rows."""
    found = torch.empty(3, logits.size(0), dtype=torch.float32, device=logits.device)
    _cross_entropy_statistics[(logits.size(0),)](
        logits, targets, found, logits.size(0), logits.size(1), valid, block=_block(logits), num_warps=_WARPS
    )
    return found


def turn_into_gradient(
    logits: torch.Tensor, targets: torch.Tensor, valid: int, found: torch.Tensor, gradient: torch.Tensor
) -> None:
    """See Rows."""
    _cross_entropy_gradient[(logits.size(0),)](
        logits, targets, found[0], found[1], gradient, logits.size(1), valid, block=_block(logits), num_warps=_WARPS
    )
    # Another use of the logits would now compute with their gradient: autograd is told, and refuses it.
    torch.autograd.graph.increment_version(logits)


def _block(logits: torch.Tensor) -> int:
    return min(_BLOCK, 1 << (logits.size(1) - 1).bit_length())


@triton.jit
def _cross_entropy_statistics(logits, targets, found, n, width, valid, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * width
    lanes = tl.arange(0, block)
    largest = tl.full([block], _LOWEST, tl.float32)
    total = tl.zeros([block], tl.float32)
    for first in range(0, valid, block):
        columns = first + lanes
        values = tl.load(start + columns, mask=columns < width, other=_LOWEST).to(tl.float32)
        values = tl.where(columns < valid, values, _LOWEST)
        larger = tl.maximum(largest, values)
        total = total * tl.exp(largest - larger) + tl.where(columns < valid, tl.exp(values - larger), 0.0)
        largest = larger
    of_row = tl.max(largest, 0)
    target = tl.load(targets + row)
    here = (target >= 0) & (target < valid)
    tl.store(found + row, of_row)
    tl.store(found + n + row, tl.sum(total * tl.exp(largest - of_row), 0))
    tl.store(found + 2 * n + row, tl.load(start + target, mask=here, other=0.0).to(tl.float32))


@triton.jit
def _cross_entropy_gradient(
    logits,
    targets,
    largest,
    total,
    gradient,
    width,
    valid,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * width
    lanes = tl.arange(0, block)
    target, most = tl.load(targets + row), tl.load(largest + row)
    factor = tl.load(gradient + row)
    share = factor / tl.load(total + row)
    for first in range(0, width, block):
        columns = first + lanes
        values = tl.load(start + columns, mask=columns < width, other=_LOWEST).to(tl.float32)
        found = tl.exp(values - most) * share - tl.where(columns == target, factor, 0.0)
        tl.store(start + columns, tl.where(columns < valid, found, 0.0), mask=columns < width)
