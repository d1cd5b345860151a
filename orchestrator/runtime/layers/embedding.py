"""Looking up tokens, whose gradients are added to the rows of the weight's buffer that they are of."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from orchestrator.runtime.layers.weight_gradient import nothing_to_add


def embedding(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows of weight [v, h] by tokens [...]: [..., h]. In place of torch's, whose gradient is a table of v rows.

    Where the weight is `only_looked_up` and the buffer of its gradients is in fp32, they are added to that at once, in
    no fixed order where a token is there twice: not where the run is to be deterministic.
    """
    buffer = getattr(weight, "main_grad", None)  # megatron-core's data parallelism has given it one
    takes_rows = buffer is not None and buffer.dtype == torch.float32 and getattr(weight, "only_looked_up", False)
    is_trained = weight.requires_grad and torch.is_grad_enabled()
    if not takes_rows or not is_trained or torch.are_deterministic_algorithms_enabled():
        return functional.embedding(tokens, weight)
    apply: Any = _Lookup.apply
    rows: torch.Tensor = apply(tokens, weight)
    return rows


def mark_only_looked_up(weight: torch.Tensor) -> None:
    """Say that nothing but `embedding` computes with a weight: as autograd sums its gradients with those of an output
    layer that shares it, it needs them itself.
    """
    vars(weight)["only_looked_up"] = True


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tokens)
        ctx.weight = weight
        return functional.embedding(tokens, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        (tokens,) = ctx.saved_tensors
        weight = ctx.weight
        weight.main_grad.index_add_(0, tokens.flatten(), gradient.flatten(0, -2).float())
        return None, nothing_to_add(weight)
