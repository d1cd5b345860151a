"""The weights of the norms around the branches of a layer: there are no matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import norm_parameters

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def parameters(model: Fields, branches: int) -> int:
    """Those of a layer with so many branches; attention and MLP may share a norm."""
    return branches * model.norms_of_a_layer // 2 * norm_parameters(model, model.hidden_size)
