"""The matrices of an MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import Matrix

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def matrices(model: Fields) -> tuple[Matrix, ...]:
    """Those of the model's own width."""
    return matrices_of_width(model, model.ffn_size)


def matrices_of_width(model: Fields, ffn: int) -> tuple[Matrix, ...]:
    """Into a width of `ffn`, twice with a gate, and out of it; none where it is 0."""
    if not ffn:
        return ()
    h, has_bias = model.hidden_size, model.add_bias_linear
    halves = (ffn, ffn) if model.is_gated else ()
    return (
        Matrix("linear_fc1", h, ffn * (2 if model.is_gated else 1), "column", has_bias, holds=halves),
        Matrix("linear_fc2", ffn, h, "row", has_bias),
    )


def other_parameters(model: Fields, tp: int) -> int:
    """Beside the matrices: none."""
    return 0
