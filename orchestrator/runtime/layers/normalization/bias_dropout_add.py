"""Adding a branch to the residual stream: by itself, or with its bias and what is dropped of it in one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.autograd.function import once_differentiable

from orchestrator.runtime.triton_kernels.loading import kernels


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


Branch = tuple[torch.Tensor, torch.Tensor | None]
"""What attention or an MLP gives, [s, b, h], s over TP under SP, and a bias that is still to be added, [h]."""


def drop_and_add(branch: Branch, residual: torch.Tensor, dropout: float) -> torch.Tensor:
    """residual + dropout(output + bias), [s, b, h], on a GPU: in place of megatron-core's function for training, which
    torch.compile makes kernels of that draw longer than they move memory.
    """
    output, bias = branch
    if bias is None and not dropout:
        return residual + output
    apply: Any = _DropAndAdd.apply
    found: torch.Tensor = apply(output, bias, residual.to(output.dtype), dropout)
    return found


def add_all(branch: Branch, residual: torch.Tensor, dropout: float) -> torch.Tensor:
    """The same with nothing dropped, for evaluation."""
    return drop_and_add(branch, residual, 0.0)


class _DropAndAdd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, output: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor, dropout: float
    ) -> torch.Tensor:
        width = output.size(-1)
        rows = (each.contiguous().view(-1, width) for each in (output, residual))
        found, kept = _kernels().drop_and_add(next(rows), bias, next(rows), dropout)
        ctx.dropout, ctx.of_bias = dropout, None if bias is None else bias.dtype
        ctx.save_for_backward(kept)
        summed: torch.Tensor = found.view(output.shape)
        return summed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        (kept,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        dtype = ctx.of_bias if ctx.needs_input_grad[1] else None
        of_output, of_bias = _kernels().gradients(gradient.view(-1, gradient.size(-1)), kept, ctx.dropout, dtype)
        return of_output.view(gradient.shape), of_bias, gradient, None


def _kernels() -> Any:
    return kernels("residual", "what a branch adds to the residual stream")
