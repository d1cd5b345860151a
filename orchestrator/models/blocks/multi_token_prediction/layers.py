"""The layers of multi-token prediction, as megatron-core builds them behind the last one, and what they draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.transformer.multi_token_prediction import (
    MultiTokenPredictionBlockSubmodules,
    MultiTokenPredictionLayer,
    MultiTokenPredictionLayerSubmodules,
)
from megatron.core.transformer.spec_utils import ModuleSpec

if TYPE_CHECKING:
    from orchestrator.models.blocks.multi_token_prediction.model_fields import PredictionFields


def settings(model: PredictionFields) -> dict[str, Any]:
    """What TransformerConfig takes; nothing for a model that predicts the next token alone."""
    if not model.predicts_further:
        return {}
    return {"mtp_num_layers": model.mtp_num_layers, "mtp_loss_scaling_factor": model.mtp_loss_scaling_factor}


def prediction_spec(count: int, layer: Any, column: Any, norm: Any) -> MultiTokenPredictionBlockSubmodules:
    """So many layers behind the last one of a model, whose specification is `layer`. `column` is a linear layer whose
    outputs are split over tensor-parallel ranks.
    """
    submodules = MultiTokenPredictionLayerSubmodules(
        enorm=norm, hnorm=norm, eh_proj=column, transformer_layer=layer, layer_norm=norm
    )
    spec = ModuleSpec(module=MultiTokenPredictionLayer, submodules=submodules)
    return MultiTokenPredictionBlockSubmodules(layer_specs=[spec] * count)


def predicted(layer: Any, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
    """What a built layer gives, [s, b, h], from hidden states of the layer before it and the embeddings of the tokens
    that these are to be joined with. Where it keeps what it attends to, it goes on from there.
    """
    tokens = torch.zeros(embedded.size(1), embedded.size(0), dtype=torch.long, device=embedded.device)
    found: torch.Tensor
    # It would look up the tokens behind those that it is given.
    found, _, _ = layer(
        input_ids=tokens,
        position_ids=tokens,
        hidden_states=hidden,
        attention_mask=None,
        embedding=lambda **unused: embedded,
    )
    return found
