"""Its matrices and scores."""

from __future__ import annotations

from orchestrator.models.blocks.attention import matrices as plain
from orchestrator.models.blocks.attention.matrices import other_parameters, scores
from orchestrator.models.blocks.base import Matrix
from orchestrator.models.blocks.protocols import Fields

__all__ = ["matrices", "other_parameters", "scores"]


def matrices(model: Fields) -> tuple[Matrix, ...]:
    """One for the gate before those of plain attention."""
    gate = Matrix("linear_gate", model.hidden_size, scores(model).output, "column", has_bias=False)
    return (gate, *plain.matrices(model))
