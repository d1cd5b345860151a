"""The MLP in megatron-core's layers: its width and its activation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.activations import squared_relu
from torch.nn import functional

from orchestrator.models.blocks.base import LayerSetup

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def settings(model: Fields, setup: LayerSetup) -> dict[str, Any]:
    """Attributes of the layers' configuration."""
    return {
        "ffn_hidden_size": model.ffn_size,
        "gated_linear_unit": model.is_gated,
        "activation_func_clamp_value": model.activation_func_clamp_value,
        "glu_linear_offset": model.glu_linear_offset,
        "bias_activation_fusion": setup.fuses_activation,
        "activation_func": _activation(model, setup),
    }


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x · sigmoid(1.702 x), CLIP's approximation; written so that one tensor is kept for the backward pass."""
    return functional.silu(1.702 * x) / 1.702


def _activation(model: Fields, setup: LayerSetup) -> Callable[..., torch.Tensor]:
    match model.activation:
        case "swiglu":
            return functional.silu
        case "geglu" | "gelu_tanh":
            # megatron-core's fused GeLUs are the tanh approximation, and go by the name of the exact one.
            return functional.gelu if setup.fuses_activation else functools.partial(functional.gelu, approximate="tanh")
        case "quick_geglu":
            return quick_gelu
        case "relu":
            return functional.relu
        case "squared_relu":
            squared: Callable[..., torch.Tensor] = squared_relu
            return squared
        case _:
            return setup.gelu
