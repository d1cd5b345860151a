"""Parameters of low-rank adapters."""

from __future__ import annotations

from orchestrator.models.layers import layers, matrices_of
from orchestrator.spec.model import ModelSpec


def adapter_parameters(model: ModelSpec, tp: int) -> int:
    """Parameters of one layer's adapters that each of `tp` ranks holds; 0 where there are none.

    Beside a matrix [out, in], an adapter has [rank, in] and [out, rank]. Whichever of the two axes is split over ranks
    for the matrix is split for the adapter.
    """
    if not model.has_adapters:
        return 0
    matrices = matrices_of(model, layers(model)[0])
    adapted = (each for each in matrices if each.name in model.adapters.target_modules)
    return model.adapters.rank * sum(int(sum(matrix.split(tp))) for matrix in adapted)
