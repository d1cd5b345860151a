"""RMSNorm over all heads of a projection, of which each tensor-parallel rank has some (OLMo 2)."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.layers.parameter_attributes import mark_sequence_parallel
from orchestrator.runtime.processes.process_groups import (
    get_tensor_model_parallel_group,
    get_tensor_model_parallel_rank,
)


class WeightPerHead(torch.nn.Module):
    """The weights of a norm of queries, or of keys, with megatron-core's constructor: each head has its own.

    Every rank has those of all heads and computes with its part; megatron-core sums the gradients over the ranks, as
    it does for norms that all heads share.
    """

    def __init__(self, config: LayerConfig, hidden_size: int, heads: int, eps: float = 1e-5, **unused: Any) -> None:
        """`hidden_size`: of a head; `heads`: of all ranks."""
        super().__init__()
        self.eps, self.heads = eps, heads
        self.tp = config.tensor_model_parallel_size
        self.weight = torch.nn.Parameter(torch.ones(heads * hidden_size, dtype=config.params_dtype))
        mark_sequence_parallel(self.weight, config)


class ProjectionNorm(WeightPerHead):
    """The norm over the heads of all ranks together."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the heads of this rank, [s, b, heads, d]."""
        weight = heads_of_rank(self.weight, x, self.heads, self.tp)
        flat = x.flatten(-2)
        if self.tp == 1:
            return functional.rms_norm(flat, weight.shape, weight, self.eps).view_as(x)
        apply: Any = _SharedNorm.apply
        normed: torch.Tensor = apply(flat, weight, self.eps, self.tp)
        return normed.view_as(x)


def heads_of_rank(weight: torch.Tensor, x: torch.Tensor, heads: int, tp: int) -> torch.Tensor:
    """Of the weights of all heads those of the heads that a rank has in x, [s, b, heads, d]."""
    if tp == 1:
        return weight
    own, width = x.size(-2), x.size(-1)
    # Where several ranks share a key/value head, each has it.
    first = get_tensor_model_parallel_rank() * heads // tp
    return weight[first * width : (first + own) * width]


class _SharedNorm(torch.autograd.Function):
    """y = r · x · w with r = (mean(x²) + eps)^-1/2, the mean over the x of all ranks; in fp32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float, tp: int) -> torch.Tensor:
        wide = x.float()
        inverse = (_mean(wide.square(), tp) + eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        ctx.tp = tp
        return (wide * inverse * weight.float()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        x, weight, inverse = ctx.saved_tensors
        scaled, gradient = x.float() * inverse, gradient.float()
        of_weight = (gradient * scaled).flatten(0, -2).sum(dim=0)
        of_scaled = gradient * weight.float()
        of_x = inverse * (of_scaled - scaled * _mean(of_scaled * scaled, ctx.tp))
        return of_x.to(x.dtype), of_weight.to(weight.dtype), None, None


def _mean(values: torch.Tensor, tp: int) -> torch.Tensor:
    """Over the last dimension of all ranks: [..., 1]."""
    mean = values.mean(dim=-1, keepdim=True)
    torch.distributed.all_reduce(mean, group=get_tensor_model_parallel_group())
    return mean.div_(tp)
