"""The weights of multi-token prediction in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.multi_token_prediction.parameters import matrices
from orchestrator.models.blocks.weights import Shapes, linears, norm

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def weights(model: Fields) -> Shapes:
    """What one of its layers has in addition to the last layer's, by their names behind its number, with their
    shapes.
    """
    hidden = model.hidden_size
    norms = (norm(f"{name}.", model, hidden) for name in ("enorm", "hnorm", "final_layernorm"))
    return {**linears(matrices(model)), **{name: shape for each in norms for name, shape in each.items()}}
