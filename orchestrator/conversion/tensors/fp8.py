"""FP8 (E4M3) as DeepSeek V3 and Qwen 3 are published: a matrix, and a scale of each of its blocks, of which the last
ones may be smaller.
"""

from __future__ import annotations

import math

import torch

SCALES = "_scale_inv"
"""How the name of a matrix's scales ends, behind its own."""
DTYPE, STORED = "BF16", "F8_E4M3"
"""Of the numbers, as DeepSeek's own program writes them; of the matrix. As safetensors has them."""
STORED_SCALES = frozenset(("F32", "BF16", "F16"))
"""DeepSeek's are in fp32, Qwen's in bf16 or fp16."""
_LARGEST_SCALE = torch.finfo(torch.bfloat16).max / torch.finfo(torch.float8_e4m3fn).max


def fits(matrix: tuple[int, ...], scales: tuple[int, ...], block: tuple[int, int]) -> bool:
    """Whether scales are of the blocks of a matrix, by the shapes of both."""
    return len(matrix) == 2 and scales == tuple(math.ceil(size / of) for size, of in zip(matrix, block, strict=True))


def are_usable(scales: torch.Tensor) -> bool:
    """Whether each is a number, and makes none that is too large for bf16."""
    return bool((scales.float().abs() <= _LARGEST_SCALE).all())


def dequantized(matrix: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """The matrix [outputs, inputs] in bf16, a row of blocks at a time."""
    rows, columns = map(min, block, matrix.shape)  # a block may be larger than the matrix
    found = torch.empty(matrix.shape, dtype=torch.bfloat16)
    for into, part, scale in zip(torch.split(found, rows), torch.split(matrix, rows), scales.float(), strict=True):
        into.copy_(part.float().mul_(scale.repeat_interleave(columns)[: part.size(1)]))
    return found
