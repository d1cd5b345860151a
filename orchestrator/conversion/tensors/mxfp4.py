"""MXFP4 (OCP Microscaling Formats 1.0), as gpt-oss is published: blocks of 32 numbers of 4 bits, each block with a
power of two. A matrix is two tensors there, whose rows are its columns.
"""

from __future__ import annotations

import torch

BLOCKS, SCALES = "_blocks", "_scales"
"""How the names of the two end."""
DTYPE, STORED = "BF16", "U8"
"""Of the numbers, which it holds exactly; of both tensors. As safetensors has them."""
_HALVES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = (*_HALVES, *(-each for each in _HALVES))
"""Of 4 bits: E2M1."""
_BYTES, _BIAS = 16, 127
"""Of a block; of the exponents."""


def shape_of(blocks: tuple[int, ...], scales: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of matrices [..., inputs, outputs] whose blocks are [..., outputs, inputs / 32, 16]; None where these
    are no blocks, or their scales have another shape.
    """
    if len(blocks) < 3 or blocks[-1] != _BYTES or scales != blocks[:-1]:
        return None
    *before, outputs, count, _ = blocks
    return (*before, 2 * _BYTES * count, outputs)


def dequantized(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The matrices [..., inputs, outputs] in bf16; the first of two numbers is in the lower bits of a byte."""
    values = torch.tensor(_VALUES)
    numbers = torch.stack((values[(blocks & 15).int()], values[(blocks >> 4).int()]), dim=-1).flatten(-2)
    scaled = torch.ldexp(numbers, scales.int().unsqueeze(-1) - _BIAS).to(torch.bfloat16)
    return scaled.flatten(-2).transpose(-1, -2)
