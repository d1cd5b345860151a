"""Biases of MLPs: that of the first linear, which Transformer Engine's product adds on its way, and whose gradient it
sums; and those of what experts give.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.moe.experts import SequentialMLP


def add_in_products(chunk: Any) -> None:
    """Let the product add the bias where megatron-core would in a kernel of its own, and sum its gradient in another:
    it asks for the bias apart, but has a kernel that takes it only for some activations. An encoder of images has
    another activation than its decoder.
    """
    for module in chunk.modules():
        # Its subclasses have passes of their own.
        apart = type(module) is MLP and not module.config.bias_activation_fusion
        if apart and getattr(module.linear_fc1, "te_return_bias", False):
            linear = module.linear_fc1
            linear.te_return_bias = linear.return_bias = False
            linear.apply_bias = True


def add_behind_experts(chunk: Any) -> None:
    """Add the biases of what experts give behind them, weighted as that is: megatron-core does so in place, to a view
    that autograd does not let it change.
    """
    for module in chunk.modules():
        if isinstance(module, SequentialMLP):
            for expert in module.local_experts:
                bias = expert.linear_fc2.bias
                if bias is not None and bias.numel():  # Transformer Engine's linear without a bias has an empty one
                    expert.linear_fc2.register_forward_hook(_without_bias)
                    expert.register_forward_hook(_add_bias)


def _without_bias(module: Any, arguments: Any, given: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, None]:
    return given[0], None


def _add_bias(
    expert: Any, arguments: tuple[torch.Tensor, torch.Tensor], given: tuple[torch.Tensor, None]
) -> tuple[torch.Tensor, None]:
    """Behind an expert that was given tokens [n, h] and their weights [n], and gives [n, h]."""
    (_, weights), (output, _) = arguments, given
    return output + (expert.linear_fc2.bias * weights.unsqueeze(-1)).to(output.dtype), None
