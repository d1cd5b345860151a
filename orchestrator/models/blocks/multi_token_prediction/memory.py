"""What a layer of multi-token prediction keeps around its attention and its MLP. Bytes of one rank and micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import CoreKernels, RankShape, norm_statistics
from orchestrator.models.blocks.multi_token_prediction.parameters import NORMS

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def saved(model: Fields, shape: RankShape, kernels: CoreKernels) -> int:
    """Inputs of the norms, of the matrix and of the output layer, without what a branch of the residual stream keeps:
    the input of its matrix, and of the norms around it.
    """
    statistics = shape.own_tokens * norm_statistics(model)
    kept = (NORMS + 2 + 1) * shape.stream + NORMS * statistics
    if shape.sequence_parallel:
        kept += shape.stream  # a copy of its tokens' part of what tensor-parallel ranks gathered
    return kept - shape.stream - model.norms_of_a_branch * (shape.stream + statistics)


def backward(model: Fields, shape: RankShape, kernels: CoreKernels) -> int:
    """The gradients of the matrix's output, whole, of its input and of itself."""
    return 3 * shape.whole_stream + 2 * shape.hidden * shape.hidden // shape.tp * shape.width
