"""The residual of a branch that has neither bias nor dropout behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig


def add_residual(training: bool, fused: bool) -> Callable[..., torch.Tensor]:
    """In place of megatron-core's `get_bias_dropout_add`, whose compiled function takes the host longer to enter, layer
    by layer and in both passes, than one addition to start.
    """
    return _add


def _add(output: tuple[torch.Tensor, None], residual: torch.Tensor, dropout: float) -> torch.Tensor:
    """output, residual and what is returned: [s, b, h], s over TP under SP."""
    return residual + output[0]


def add_plainly(layer: Any, config: TransformerConfig) -> ModuleSpec:
    """The layer, with that where it is all there is to do."""
    if config.hidden_dropout == 0 and not config.add_bias_linear:
        layer.submodules.self_attn_bda = layer.submodules.mlp_bda = add_residual
    return layer
