"""Gated activations of dense MLPs by kernels of our own, in place of what torch.compile makes of megatron-core's."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from orchestrator.runtime.triton_kernels.loading import kernels

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig

    from orchestrator.runtime.triton_kernels.gated_linear_unit import Gate


def gated(x: torch.Tensor, gate: Gate) -> torch.Tensor:
    """activation(first half) · second half of the last dimension, [..., 2f] to [..., f], on a GPU."""
    apply: Any = _Gated.apply
    found: torch.Tensor = apply(x.contiguous().view(-1, x.size(-1)), gate)
    return found.view(*x.shape[:-1], -1)


def use_gate(config: TransformerConfig, gate: Gate) -> None:
    """Have the MLPs of a configuration call it with what their first matrix gives: megatron-core's way to an activation
    that takes both halves.
    """
    config.bias_activation_fusion, config.use_te_activation_func = False, True
    config.activation_func = functools.partial(gated, gate=gate)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gate: Gate) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.gate = gate
        found: torch.Tensor = _kernels().gated(x, gate)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return _kernels().gated_gradient(gradient.contiguous(), x, ctx.gate), None


def _kernels() -> Any:
    return kernels("gated_linear_unit", "a gated activation")
