"""What a dense MLP keeps for its backward pass. Bytes of one rank and micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import FP32, CoreKernels, RankShape

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def inputs(model: Fields, shape: RankShape, kernels: CoreKernels) -> int:
    """Of what is kept, the input of its second matrix."""
    return _inner(model, shape)


def halves(model: Fields) -> int:
    """Of the first matrix's output: 2 with a gate, else 1."""
    return 2 if model.is_gated else 1


def saved(model: Fields, shape: RankShape, kernels: CoreKernels) -> int:
    """The activation's input, and its output for the second linear. ReLU needs its output alone."""
    if model.activation == "quick_geglu":
        return quick_gate(model) * _inner(model, shape)
    if model.activation == "geglu_exact" and not kernels.joins_gate:
        return exact_gate(shape) * _inner(model, shape)
    return (halves(model) + (model.activation != "relu")) * _inner(model, shape)


def quick_gate(model: Fields) -> int:
    """How often a quick gate keeps the width inside an MLP: what goes into its sigmoid, both factors and their product;
    and, clamped, what both were before.
    """
    return 4 if model.activation_func_clamp_value is None else 6


def exact_gate(shape: RankShape) -> int:
    """How often an exact gate keeps it: what goes into its GeLU, both factors and their product. Torch's function, for
    fp32, keeps the other half of the first matrix's output too, of which it takes a view.
    """
    return 5 if shape.width == FP32 else 4


def backward(model: Fields, shape: RankShape, kernels: CoreKernels) -> int:
    """The most that its backward pass takes beyond everything that the layer had saved when it began. Three moments
    compete: gradients appear while what was saved is still needed.
    """
    inside, of_first = _inner(model, shape), halves(model)
    gradient, weight = shape.stream, model.ffn_size // shape.tp * shape.hidden * shape.width
    gathered = shape.whole_stream if shape.sequence_parallel else 0
    masked = shape.stream if model.hidden_dropout > 0 else 0
    second_linear = gradient + masked + gathered + inside + weight
    activation = gradient + of_first * inside
    first_linear = gradient - inside + shape.whole_stream + of_first * weight
    if shape.sequence_parallel:
        first_linear += shape.stream + (gathered if kernels.layers == "transformer_engine" else 0)
    if kernels.operand_bytes is not None:
        # The gradient of a linear's output is cast in both orders, and is still there itself; its input was narrow.
        cast, narrow = 2 * kernels.operand_bytes / shape.width, 1 - kernels.operand_bytes / shape.width
        second_linear += int(shape.whole_stream * cast)
        first_linear += int(of_first * inside * cast + inside * narrow)
    return max(second_linear, activation, first_linear)


def _inner(model: Fields, shape: RankShape) -> int:
    """The inner activation, without a gate."""
    return shape.tokens * (model.ffn_size // shape.tp) * shape.width
