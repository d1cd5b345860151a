"""LayerNorm and RMSNorm by torch, as megatron-core's layers want them, and by kernels of our own."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.autograd.function import once_differentiable
from torch.nn import functional

from orchestrator.runtime.layers.parameter_attributes import mark_sequence_parallel
from orchestrator.runtime.triton_kernels.loading import kernels


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


class KernelNorm(Norm):
    """The same on a GPU, in one kernel for each pass and another for the gradients of weight and bias."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x: [..., hidden_size]."""
        apply: Any = _KernelNorm.apply
        rows = x.contiguous().view(-1, x.size(-1))
        normed: torch.Tensor = apply(rows, self.weight, self.bias, self.eps, self.is_rms, self.is_zero_centered)
        return normed.view(x.shape)


class _KernelNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
        is_rms: bool,
        adds_one: bool,
    ) -> torch.Tensor:
        normed = _kernels().normalize(x, weight, bias, eps, is_rms=is_rms, adds_one=adds_one)
        ctx.save_for_backward(x, weight, normed.means, normed.inverses)
        ctx.has_bias, ctx.adds_one = bias is not None, adds_one
        rows: torch.Tensor = normed.rows
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        x, weight, means, inverses = ctx.saved_tensors
        found = _kernels().gradients(
            gradient.contiguous(), x, weight, (means, inverses), has_bias=ctx.has_bias, adds_one=ctx.adds_one
        )
        return *found, None, None, None


def _kernels() -> Any:
    return kernels("norms", "a norm")
