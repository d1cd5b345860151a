"""The norms around attention and MLP in megatron-core's layers, and what these are multiplied by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from megatron.core.transformer.transformer_config import TransformerConfig

from orchestrator.models.blocks.base import LayerSetup

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


@dataclass
class ResidualStreamConfig(TransformerConfig):
    """megatron-core's configuration, and where norms are that it has not."""

    norm_bias: bool = True
    """LayerNorms have a bias. megatron-core's, and Transformer Engine's, always have one."""
    normalizes_inputs: bool = True
    """There are norms before attention and MLP."""
    normalizes_outputs: bool = False
    """There are norms of what attention and MLP give."""
    parallel_residual: Literal["two_norms", "one_norm"] | None = None
    """Attention and MLP have the same input, through a norm each or through one, and both are added to it."""
    residual_multiplier: float = 1.0
    """What attention and MLP give is multiplied by this."""


def settings(model: Fields, setup: LayerSetup) -> dict[str, Any]:
    """Attributes of the layers' configuration."""
    return {
        "norm_bias": model.norm_bias,
        "normalizes_inputs": model.normalizes_inputs,
        "normalizes_outputs": model.normalizes_outputs,
        "parallel_residual": model.parallel_residual,
        "residual_multiplier": model.residual_multiplier,
    }
