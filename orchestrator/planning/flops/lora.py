"""Model FLOPs of training low-rank adapters: what is frozen needs the gradient of its input only, not of its weight."""

from __future__ import annotations

from orchestrator.models.blocks.base import Matrix
from orchestrator.models.blocks.block import Branch
from orchestrator.models.layers import Layer, layers, matrices_of
from orchestrator.planning.layout.chunk_layers import kinds_of
from orchestrator.spec.model import ModelSpec

LORA_FORMULA = (
    "T * (L*(4*(h*(q+2*k) + q*h + m*h*f) + 6*a + 12*q*s) + 4*V*h - u); T tokens, L layers, h hidden, q query width, "
    "k key width, m MLP matrices (2, gated 3), f ffn width, a parameters of a layer's adapters, s sequence, V padded "
    "vocabulary; u gradients that nothing needs: of what lies before the first adapter, and of its input"
)
"""As `flops.FORMULA`."""
LORA_HYBRID_FORMULA = (
    "T * (M*(4*(h*p + w*h) + 3*7*w*n) + A*(4*(h*(q+2*k) + q*h) + 12*q*s) + F*4*m*h*f + 6*a + 4*V*h - u); T tokens, "
    "M, A and F layers of state space, attention and MLP or experts, h hidden, w width of a state space layer, n its "
    "state, p = 2*w + 2*groups*n + heads, q query width, k key width, s sequence, m MLP matrices (2, gated 3), f ffn "
    "width, a parameters of all adapters, V padded vocabulary; u gradients that nothing needs: of what lies before the "
    "first adapter, and of its input"
)
"""The same of a hybrid."""
_WITH_EXPERTS = (
    "; in a layer with experts m*f is m*(chosen experts * their width * c + shared width) + experts, and a counts the "
    "adapters of chosen experts, each c times; c the capacity factor where it is below 1, and else 1"
)


def lora_formula(model: ModelSpec) -> str:
    """The formula of a model with adapters."""
    different = dict.fromkeys(layers(model))
    routes = any(each.routing is not None for layer in different for each in matrices_of(model, layer))
    of_blocks = dict.fromkeys(block.formula for layer in different for block in layer)
    whole = LORA_HYBRID_FORMULA if model.family.is_hybrid else LORA_FORMULA
    return "; ".join([f"{whole}{_WITH_EXPERTS}" if routes else whole, *filter(None, of_blocks)])


def lora_flops(model: ModelSpec, attended: float, padded_vocab: int) -> float:
    """Floating-point operations of forward and backward over a token. `attended`: the s of attention."""
    of_layers = sum(count * _layer(model, layer, attended) for layer, count in kinds_of(layers(model)))
    return of_layers + 4 * padded_vocab * model.hidden_size - _unneeded(model, attended)


def _layer(model: ModelSpec, layer: Layer, attended: float) -> float:
    matrices = sum(4 * _products(each) + 6 * _of_adapter(model, each) for each in matrices_of(model, layer))
    return 3 * sum(_mixing(model, block, attended) for block in layer) + matrices


def _mixing(model: ModelSpec, block: Branch, attended: float) -> float:
    """Forward, of what tokens give each other between a block's matrices: by scores, or by states."""
    scores, scan = block.scores(model), block.scan(model)
    return (4 * scores.width * attended if scores is not None else 0) + (scan.flops if scan is not None else 0)


def _unneeded(model: ModelSpec, attended: float) -> float:
    """Gradients of inputs that lead to no adapter: of all layers before the first one that has some, and in that."""
    needed, found = False, 0.0
    for layer in layers(model):
        entering = needed
        for block in layer:
            leads, of_block = _unneeded_of(model, block, entering, attended)
            needed, found = needed or leads, found + of_block
            entering = entering if model.parallel_residual is not None else needed  # each has the layer's input, or not
        if needed:
            break
    return found


def _unneeded_of(model: ModelSpec, block: Branch, entering: bool, attended: float) -> tuple[bool, float]:
    """Whether what a block gives needs a gradient, and FLOPs of gradients that it does not need. `entering`: whether
    its input needs one.
    """
    leads: dict[str, bool] = {}
    found, before = 0.0, ""
    for matrix in block.parameters.matrices(model):
        taken = matrix.behind
        if taken is None:
            taken = (before,) if matrix.parallel == "row" else ()
        needed, before = any(leads[name] for name in taken) if taken else entering, matrix.name
        if not needed:
            found += 2 * _products(matrix) + 2 * _passed(matrix) * matrix.inputs * _rank(model, matrix)
            found += 2 * _mixing(model, block, attended) if matrix.parallel == "row" else 0.0
        leads[matrix.name] = needed or _rank(model, matrix) > 0
    return any(leads.values()), found


def _passed(matrix: Matrix) -> float:
    """How many such matrices a token passes."""
    return 1 if matrix.routing is None else matrix.routing.chosen * matrix.routing.kept


def _products(matrix: Matrix) -> float:
    return matrix.inputs * matrix.outputs * _passed(matrix)


def _rank(model: ModelSpec, matrix: Matrix) -> int:
    """Of the adapter beside a matrix; 0 where there is none."""
    return model.adapters.rank if matrix.name in model.adapted_modules else 0


def _of_adapter(model: ModelSpec, matrix: Matrix) -> float:
    return _rank(model, matrix) * (matrix.inputs + matrix.outputs) * _passed(matrix)
