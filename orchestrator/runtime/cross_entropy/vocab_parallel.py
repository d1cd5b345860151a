"""Cross entropy of logits whose vocabulary is split over tensor-parallel ranks.

The gradient takes the logits' place: beside them nothing of their size is ever held.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from orchestrator.runtime.cross_entropy.rows import rows_on


def vocab_parallel_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, valid: int, first: int, group: dist.ProcessGroup
) -> torch.Tensor:
    """Cross entropy per token, [n] in fp32, from logits [n, v] and labels [n].

    `logits` are this rank's part of the vocabulary, of which `first` is the first entry. Entries of the vocabulary from
    `valid` on are padding, which never gets any probability. The backward pass overwrites the logits.
    """
    apply: Any = _CrossEntropy.apply
    loss: torch.Tensor = apply(logits, labels - first, valid_columns(logits.size(1), valid, first), group)
    return loss


def valid_columns(width: int, valid: int, first: int) -> int:
    """How many of this rank's `width` columns, of which `first` is the first of the vocabulary, are not padding."""
    return min(max(valid - first, 0), width)


def loss_of(found: torch.Tensor) -> torch.Tensor:
    """[n], from statistics of all ranks."""
    loss: torch.Tensor = found[1].log() + found[0] - found[2]
    return loss


def over_ranks(found: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The statistics of whole rows, [3, n], from those of each rank's part of them, which are overwritten."""
    if group.size() > 1:
        own = found[0].clone()
        dist.all_reduce(found[0], dist.ReduceOp.MAX, group=group)
        found[1] *= (own - found[0]).exp_()
        dist.all_reduce(found[1:], dist.ReduceOp.SUM, group=group)
    return found


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, valid: int, group: dist.ProcessGroup
    ) -> torch.Tensor:
        logits, targets = logits.contiguous(), targets.contiguous()
        found = over_ranks(rows_on(logits.device).statistics(logits, targets, valid), group)
        ctx.save_for_backward(logits, targets, found)
        ctx.valid = valid
        return loss_of(found)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        [gradient] = gradients
        logits, targets, found = ctx.saved_tensors
        rows = rows_on(logits.device)
        rows.turn_into_gradient(logits, targets, ctx.valid, found, gradient.float().contiguous())
        return logits, None, None, None
