"""Model FLOPs of training low-rank adapters: what is frozen needs the gradient of its input only, not of its weight."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.models.blocks.base import Matrix
from orchestrator.models.layers import Layer, layers, matrices_of
from orchestrator.planning.flops.layers import scores_width
from orchestrator.planning.layout.chunk_layers import kinds_of
from orchestrator.spec.model import ModelSpec

LORA_FORMULA = (
    "T * (L*(4*(h*(q+2*k) + q*h + m*h*f) + 6*a + 12*q*s) + 4*V*h - u); T tokens, L layers, h hidden, q query width, "
    "k key width, m MLP matrices (2, gated 3), f ffn width, a parameters of a layer's adapters, s sequence, V padded "
    "vocabulary; u gradients that nothing needs: of what lies before the first adapter, and of its input"
)
"""As `flops.FORMULA`."""
_WITH_EXPERTS = (
    "; in a layer with experts m*f is m*(chosen experts * their width * c + shared width) + experts, and a counts the "
    "adapters of chosen experts, each c times; c the capacity factor where it is below 1, and else 1"
)


def lora_formula(model: ModelSpec) -> str:
    """The formula of a model with adapters."""
    routes = any(each.routing is not None for layer in set(layers(model)) for each in matrices_of(model, layer))
    return f"{LORA_FORMULA}{_WITH_EXPERTS}" if routes else LORA_FORMULA


def lora_flops(model: ModelSpec, attended: float, padded_vocab: int) -> float:
    """Floating-point operations of forward and backward over a token. `attended`: the s of attention."""
    scores = scores_width(model) * attended
    of_layers = sum(count * _layer(model, layer, scores) for layer, count in kinds_of(layers(model)))
    return of_layers + 4 * padded_vocab * model.hidden_size - _unneeded(model, scores)


def _layer(model: ModelSpec, layer: Layer, scores: float) -> float:
    matrices = matrices_of(model, layer)
    return 12 * scores + sum(4 * _products(each) + 6 * _of_adapter(model, each) for each in matrices)


def _unneeded(model: ModelSpec, scores: float) -> float:
    """Gradients of inputs in the first layer that lead to no adapter."""
    needed, found = False, 0.0
    for block in layers(model)[0]:
        leads = needed
        for branch in _branches(block.parameters.matrices(model)):
            behind = needed
            for matrix in branch:
                if not behind:
                    found += 2 * _products(matrix) + 2 * _passed(matrix) * matrix.inputs * _rank(model, matrix)
                behind = behind or _rank(model, matrix) > 0
                if block.scores(model) is not None and not behind and matrix is branch[0]:
                    found += 8 * scores
            leads = leads or behind
        needed = leads and model.parallel_residual is None  # else the next block has the same input
    return found


def _branches(matrices: Iterable[Matrix]) -> list[list[Matrix]]:
    """The matrices of a block that are computed with one after the other: a row-parallel one takes what comes out of
    the one before it, all others the block's input.
    """
    found: list[list[Matrix]] = []
    for each in matrices:
        if each.parallel == "row":
            found[-1].append(each)
        else:
            found.append([each])
    return found


def _passed(matrix: Matrix) -> float:
    """How many such matrices a token passes."""
    return 1 if matrix.routing is None else matrix.routing.chosen * matrix.routing.kept


def _products(matrix: Matrix) -> float:
    return matrix.inputs * matrix.outputs * _passed(matrix)


def _rank(model: ModelSpec, matrix: Matrix) -> int:
    """Of the adapter beside a matrix; 0 where there is none."""
    return model.adapters.rank if matrix.name in model.adapters.target_modules else 0


def _of_adapter(model: ModelSpec, matrix: Matrix) -> float:
    return _rank(model, matrix) * (matrix.inputs + matrix.outputs) * _passed(matrix)
