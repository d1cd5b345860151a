"""The arithmetic of Muon's Newton-Schulz iterations, and what of it is done at a time."""

from __future__ import annotations

ROUND_ELEMENTS = 1 << 25
"""Matrices are orthogonalised in rounds. Elements of one for each rank, where no single matrix has more."""


def newton_schulz_flops(rows: int, columns: int, steps: int) -> int:
    """Of one matrix: in each step XXᵀ, its square, and a product with X, on the shorter side."""
    short, long = sorted((rows, columns))
    return steps * (4 * short**2 * long + 2 * short**3)
