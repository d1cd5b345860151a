"""The layers of multi-token prediction, as megatron-core builds them behind the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
