"""Which blocks a layer is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import Matrix
from orchestrator.models.blocks.mlp import matrices as mlp
from orchestrator.models.blocks.registry import attention_of

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def transformer_layer(model: Fields, ffn: int) -> tuple[Matrix, ...]:
    """The matrices of an attention and an MLP of width `ffn`, in the order in which they are computed with."""
    return (*attention_of(model).matrices.matrices(model), *mlp.matrices(model, ffn))
