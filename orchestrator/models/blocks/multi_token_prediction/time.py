"""What a layer of multi-token prediction moves in memory, beside its matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import CoreWork, ForwardBackward
from orchestrator.models.blocks.multi_token_prediction.parameters import NORMS

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def moved(model: Fields, work: CoreWork) -> ForwardBackward:
    """The embedding that is looked up, the copy that puts it before the hidden state, and norms beyond those around
    every branch.
    """
    copied = ForwardBackward(2 + 4, 2 + 4).plus(work.norm, NORMS - model.norms_of_a_branch)
    return ForwardBackward(0, 0).plus(copied, work.tokens * model.hidden_size)


def gathered(model: Fields, tp: int) -> int:
    """Elements of each token that tensor-parallel ranks gather: what the matrix gives."""
    return model.hidden_size if tp > 1 else 0
