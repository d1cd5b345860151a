"""Output layer and cross entropy in one, chunk by chunk over the tokens: the logits of all of them never exist.

Backward computes each chunk's logits again. The vocabulary may be split over tensor-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from orchestrator.planning.memory.chunked_loss import tokens_of_chunk


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, valid: int, first: int, group: dist.ProcessGroup
) -> torch.Tensor:
    """Cross entropy per token, [n] in fp32, from hidden [n, h] and labels [n].

    `weight` [v, h] is this rank's rows of the vocabulary, of which `first` is the first one; rows from `valid` on are
    padding, which never gets any probability. The gradient of `hidden` is this rank's part of the sum over the group.
    """
    apply: Any = _LinearCrossEntropy.apply
    loss: torch.Tensor = apply(hidden, weight, labels, valid, first, group)
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        valid: int,
        first: int,
        group: dist.ProcessGroup,
    ) -> torch.Tensor:
        losses = hidden.new_empty(hidden.size(0), dtype=torch.float32)
        normalizers = torch.empty_like(losses)
        for part in _chunks(hidden, weight):
            logits = _logits(hidden[part], weight, valid, first)
            largest = logits.amax(dim=-1)
            _over(group, largest, dist.ReduceOp.MAX)
            here, rows = _rows_here(labels[part], first, weight.size(0))
            found = logits.gather(1, rows[:, None])[:, 0].where(here, 0.0)
            total = (logits - largest[:, None]).exp_().sum(dim=-1)
            both = torch.stack([total, found])
            _over(group, both, dist.ReduceOp.SUM)
            normalizers[part] = both[0].log() + largest
            losses[part] = normalizers[part] - both[1]
        ctx.save_for_backward(hidden, weight, labels, normalizers)
        ctx.valid, ctx.first = valid, first
        return losses

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        [gradient] = gradients
        hidden, weight, labels, normalizers = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for part in _chunks(hidden, weight):
            softmax = (_logits(hidden[part], weight, ctx.valid, ctx.first) - normalizers[part][:, None]).exp_()
            here, rows = _rows_here(labels[part], ctx.first, weight.size(0))
            softmax.scatter_add_(1, rows[:, None], -here[:, None].to(softmax.dtype))
            of_logits = softmax.mul_(gradient[part][:, None]).to(hidden.dtype)
            of_hidden[part] = of_logits @ weight
            if of_weight is not None:
                of_weight += of_logits.t() @ hidden[part]
        return of_hidden, None if of_weight is None else of_weight.to(weight.dtype), None, None, None, None


def _chunks(hidden: torch.Tensor, weight: torch.Tensor) -> Iterator[slice]:
    count = tokens_of_chunk(weight.size(0))
    for start in range(0, hidden.size(0), count):
        yield slice(start, start + count)


def _logits(hidden: torch.Tensor, weight: torch.Tensor, valid: int, first: int) -> torch.Tensor:
    """[n, v] in fp32, multiplied in the model's dtype."""
    logits = (hidden @ weight.t()).float()
    if valid - first < weight.size(0):
        logits[:, max(valid - first, 0) :] = torch.finfo(torch.float32).min
    return logits


def _rows_here(labels: torch.Tensor, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether each label is one of this rank's rows, and which; 0 where it is not."""
    rows = labels - first
    here = (rows >= 0) & (rows < count)
    return here, rows.where(here, 0)


def _over(group: dist.ProcessGroup, values: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> None:
    if group.size() > 1:
        dist.all_reduce(values, operation, group=group)
