"""The weights of an MLP in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.mlp.parameters import matrices
from orchestrator.models.blocks.weights import Shapes, linears, norm

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def weights(model: Fields) -> Shapes:
    """Those of one layer and the norm before it, by their names in the MLP, with their shapes."""
    found = norm("linear_fc1.layer_norm_", model, model.hidden_size) if model.normalizes_each_input else {}
    return found | linears(matrices(model))
