"""The bias of an MLP's first linear, which Transformer Engine's product adds on its way, and whose gradient it sums."""

from __future__ import annotations

from typing import Any

from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.transformer_config import TransformerConfig


def add_in_products(chunk: Any, config: TransformerConfig) -> None:
    """Let the product add the bias where megatron-core would in a kernel of its own, and sum its gradient in another:
    it asks for the bias apart, but has a kernel that takes it only for some activations.
    """
    if config.bias_activation_fusion:
        return
    for module in chunk.modules():
        # Its subclasses have passes of their own.
        if type(module) is MLP and getattr(module.linear_fc1, "te_return_bias", False):
            linear = module.linear_fc1
            linear.te_return_bias = linear.return_bias = False
            linear.apply_bias = True
