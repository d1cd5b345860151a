"""What a layer of multi-token prediction has before its attention and its MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import Matrix, norm_parameters

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields

NORMS = 3
"""Of the next token's embedding, of the hidden state that goes with it, and of what the layer gives."""
FORMULA = "plus, for each layer of multi-token prediction, a layer, 12*h*h and 6*V*h"


def matrices(model: Fields) -> tuple[Matrix, ...]:
    """Embedding and hidden state, one behind the other, into the width of one."""
    return (Matrix("eh_proj", 2 * model.hidden_size, model.hidden_size, "column", has_bias=False),)


def other_parameters(model: Fields, tp: int) -> int:
    """Those of its norms, without as many as every branch of the residual stream has around it."""
    return (NORMS - model.norms_of_a_branch) * norm_parameters(model, model.hidden_size)
