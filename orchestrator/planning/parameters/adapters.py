"""Parameters of low-rank adapters."""

from __future__ import annotations

from orchestrator.models.blocks.base import Degrees, Matrix
from orchestrator.models.layers import Layer, layers, matrices_of
from orchestrator.spec.model import ModelSpec


def adapted_matrices(model: ModelSpec, layer: Layer) -> tuple[Matrix, ...]:
    """The matrices of a layer that adapters stand beside; of experts each has one."""
    if not model.has_adapters:
        return ()
    chosen = model.adapted_modules
    return tuple(each for each in matrices_of(model, layer) if each.name in chosen)


def adapter_parameters(model: ModelSpec, degrees: Degrees, layer: Layer | None = None) -> int:
    """Parameters of a layer's adapters that each rank holds; 0 where there are none. The model's first by default."""
    return sum(of_adapters(model, each, degrees) for each in adapted_matrices(model, layer or layers(model)[0]))


def expert_adapter_parameters(model: ModelSpec, degrees: Degrees, layer: Layer) -> int:
    """Those of experts among them."""
    routed = (each for each in adapted_matrices(model, layer) if each.routing is not None)
    return sum(of_adapters(model, each, degrees) for each in routed)


def of_adapters(model: ModelSpec, matrix: Matrix, degrees: Degrees) -> int:
    """Beside a matrix [out, in], an adapter has [rank, in] and [out, rank]. Whichever of the two axes is split over
    ranks for the matrix is split for the adapter.
    """
    tp = degrees.tp if matrix.routing is None else degrees.etp
    return held_adapters(matrix, degrees) * model.adapters.rank * int(sum(matrix.split(tp)))


def held_adapters(matrix: Matrix, degrees: Degrees) -> int:
    """How many adapters a rank has beside such matrices of a layer: one, or one for each of its experts."""
    return 1 if matrix.routing is None else matrix.routing.experts // degrees.ep
