"""LayerNorm and RMSNorm by torch, as megatron-core's layers want them."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn import functional

from orchestrator.runtime.layers.parameter_attributes import mark_sequence_parallel


class Norm(torch.nn.Module):
    """LayerNorm, with a bias or without one, or RMSNorm over the last dimension, with megatron-core's constructor.

    Zero-centred, it multiplies by 1 + weight; in fp32, since the sum would lose what the weight holds in bf16.

    Its parameters are marked `sequence_parallel`, so that megatron-core sums their gradients over the tensor-parallel
    ranks; megatron-core's own fallback norm refuses sequence parallelism.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **unused: Any) -> None:
        super().__init__()
        self.eps = eps
        self.shape = (hidden_size,)
        self.is_rms = config.normalization == "RMSNorm"
        self.is_zero_centered = config.layernorm_zero_centered_gamma
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        mark_sequence_parallel(self.weight, config)
        self.bias: torch.nn.Parameter | None = None
        # A configuration that is only megatron-core's says nothing of it: a LayerNorm of its own always has one.
        if not self.is_rms and getattr(config, "norm_bias", True):
            self.bias = torch.nn.Parameter(torch.zeros(hidden_size, dtype=config.params_dtype))
            mark_sequence_parallel(self.bias, config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x: [..., hidden_size]."""
        if self.is_zero_centered:
            bias = None if self.bias is None else self.bias.float()
            return self._normalise(x.float(), 1.0 + self.weight.float(), bias).to(x.dtype)
        return self._normalise(x, self.weight, self.bias)

    def _normalise(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.is_rms:
            return functional.rms_norm(x, self.shape, weight, self.eps)
        return functional.layer_norm(x, self.shape, weight, bias, self.eps)
