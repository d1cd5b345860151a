"""What norms and factors around a layer's branches keep for its backward pass. Bytes of one rank and micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import FP32, RankShape, norm_statistics

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def saved_by_branch(model: Fields, shape: RankShape, *, recomputes_norm: bool) -> int:
    """The input of a branch's linear, and of each norm around the branch the input and statistics. `recomputes_norm`:
    the one before it.
    """
    norms = model.norms_of_a_branch - (1 if recomputes_norm else 0)
    return shape.stream + norms * _of_a_norm(model, shape)


def saved_once(model: Fields, shape: RankShape) -> int:
    """What attention and MLP keep once where they have the same input: that, and where they share its norm, what this
    keeps and gives.
    """
    if model.parallel_residual is None:
        return 0
    return shape.stream + (_of_a_norm(model, shape) if model.parallel_residual == "one_norm" else 0)


def saved_in_fp32(model: Fields, shape: RankShape) -> int:
    """Torch's norms that multiply by 1 + weight compute on, and keep, fp32 copies of that and of their input: those of
    a layer.
    """
    copies = shape.stream * (FP32 - shape.width) // shape.width + shape.hidden * FP32
    return model.norms_of_a_layer * copies if model.apply_layernorm_1p else 0


def backward(model: Fields, shape: RankShape) -> int:
    """Beside the gradient of the residual stream that of the branch, times the factor; dropout makes another of it."""
    return shape.stream if model.residual_multiplier != 1.0 and not model.hidden_dropout else 0


def _of_a_norm(model: Fields, shape: RankShape) -> int:
    return shape.stream + shape.own_tokens * norm_statistics(model)
