"""Orthogonalising a matrix: its nearest one whose singular values are about 1, by matrix products alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import torch

from orchestrator.spec.sections.optimizer import NS_COEFFICIENTS, OptimizerSpec

_EPS = 1e-7
"""Least norm that a matrix is divided by: one of zeros stays zeros."""


def orthogonalize(matrices: torch.Tensor, spec: OptimizerSpec) -> torch.Tensor:
    """Matrices [n, rows, columns] with singular values near 1, times the scale of an update of this shape.

    Newton-Schulz iterations in the dtype of the matrices (Jordan et al. 2024, "Muon"): X ← aX + (bA + cA²)X with
    A = XXᵀ.
    """
    rows, columns = matrices.shape[-2:]
    norm = torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)
    found: torch.Tensor = matrices / norm.clamp_(min=_EPS)
    if rows > columns:
        found = found.mT
    known = NS_COEFFICIENTS[spec.muon_coefficient_type]
    for step in range(spec.muon_num_ns_steps):
        is_last = step == spec.muon_num_ns_steps - 1
        factor = update_scale(spec, rows, columns) if is_last else 1.0
        a, b, c = (factor * each for each in known[step % len(known)])
        gram = found @ found.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        found = torch.baddbmm(found, polynomial, found, beta=a)
    if rows > columns:
        found = found.mT
    return found


def orthogonalize_all(matrices: Sequence[torch.Tensor], spec: OptimizerSpec) -> list[torch.Tensor]:
    """Each matrix [rows, columns] orthogonalised, those of one shape at once."""
    found: dict[int, torch.Tensor] = {}
    for indices in _alike(matrices):
        together = orthogonalize(torch.stack([matrices[index] for index in indices]), spec)
        found.update(zip(indices, together, strict=True))
    return [found[index] for index in range(len(matrices))]


def _alike(matrices: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """The indices of the matrices of each shape."""
    shapes = sorted((tuple(matrix.shape), index) for index, matrix in enumerate(matrices))
    for _, group in groupby(shapes, key=itemgetter(0)):
        yield [index for _, index in group]


def update_scale(spec: OptimizerSpec, rows: int, columns: int) -> float:
    """What an orthogonal matrix [rows, columns] is multiplied by before the learning rate.

    spectral: Liu et al. 2025, "Muon is scalable for LLM training"; unit_rms_norm: Bernstein 2025, "Deriving Muon";
    shape_scaling: Jordan et al. 2024.
    """
    scales = {
        "spectral": max(rows, columns),
        "unit_rms_norm": rows / columns,
        "shape_scaling": max(1.0, rows / columns),
    }
    return float(spec.muon_extra_scale_factor * scales[spec.muon_scale_mode] ** 0.5)
