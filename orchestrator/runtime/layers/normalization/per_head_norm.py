"""LayerNorm of each head with weights of its own, of which each tensor-parallel rank has some heads (Command R+)."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from orchestrator.runtime.layers.normalization.projection_norm import WeightPerHead, heads_of_rank


class PerHeadNorm(WeightPerHead):
    """The norm of each head by itself, without a bias."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the heads of this rank, [s, b, heads, d]."""
        weight = heads_of_rank(self.weight, x, self.heads, self.tp).view(x.shape[-2:])
        apply: Any = _HeadNorm.apply
        normed: torch.Tensor = apply(x, weight, self.eps)
        return normed


class _HeadNorm(torch.autograd.Function):
    """y = n · w with n = (x - mean(x)) · (var(x) + eps)^-1/2 over the last dimension, and w: [heads, d]; in fp32, of
    which only the mean and the deviation of each head are kept.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        variance, mean = torch.var_mean(wide, dim=-1, correction=0, keepdim=True)
        inverse = (variance + eps).rsqrt_()
        ctx.save_for_backward(x, weight, mean, inverse)
        return ((wide - mean) * inverse * weight.float()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, mean, inverse = ctx.saved_tensors
        normed, gradient = (x.float() - mean) * inverse, gradient.float()
        of_weight = (gradient * normed).flatten(0, -3).sum(dim=0)
        of_normed = gradient * weight.float()
        along = (of_normed * normed).mean(dim=-1, keepdim=True)
        of_x = inverse * (of_normed - of_normed.mean(dim=-1, keepdim=True) - normed * along)
        return of_x.to(x.dtype), of_weight.to(weight.dtype), None
