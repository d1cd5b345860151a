"""Output layer and cross entropy in one, chunk by chunk over the tokens: the logits of all of them never exist.

Backward computes each chunk's logits again. The vocabulary may be split over tensor-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from orchestrator.kernel_selection.chunked_loss import tokens_of_chunk
from orchestrator.runtime.cross_entropy.rows import rows_on
from orchestrator.runtime.cross_entropy.vocab_parallel import loss_of, over_ranks, valid_columns
from orchestrator.runtime.layers.weight_gradient import Accumulate, nothing_to_add


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    valid: int,
    first: int,
    group: dist.ProcessGroup,
    buffer: torch.Tensor | None,
    add: Accumulate,
) -> torch.Tensor:
    """Cross entropy per token, [n] in fp32, from hidden [n, h] and labels [n].

    `weight` [v, h] is this rank's rows of the vocabulary, of which `first` is the first one; rows from `valid` on are
    padding, which never gets any probability. The gradient of `hidden` is this rank's part of the sum over the group.
    Products that are the weight's are added by `add` to `buffer` [v, h], megatron-core's for it in fp32, or where there
    is none to a sum in fp32.
    """
    apply: Any = _LinearCrossEntropy.apply
    columns = valid_columns(weight.size(0), valid, first)
    loss: torch.Tensor = apply(hidden, weight, (labels - first).contiguous(), columns, group, buffer, add)
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        valid: int,
        group: dist.ProcessGroup,
        buffer: torch.Tensor | None,
        add: Accumulate,
    ) -> torch.Tensor:
        rows = rows_on(hidden.device)
        found = torch.empty(3, hidden.size(0), dtype=torch.float32, device=hidden.device)
        for part in _chunks(hidden, weight):
            found[:, part] = rows.statistics(_logits(hidden[part], weight), targets[part], valid)
        over_ranks(found, group)
        ctx.save_for_backward(hidden, weight, targets, found)
        ctx.valid, ctx.buffer, ctx.add = valid, buffer, add
        return loss_of(found)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, found = ctx.saved_tensors
        gradient = gradients[0].float().contiguous()
        rows = rows_on(hidden.device)
        of_hidden = torch.empty_like(hidden)
        of_weight: torch.Tensor | None = None
        if ctx.needs_input_grad[1]:
            of_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.buffer is None else ctx.buffer
        for part in _chunks(hidden, weight):
            of_logits = _logits(hidden[part], weight)
            rows.turn_into_gradient(of_logits, targets[part], ctx.valid, found[:, part], gradient[part])
            of_hidden[part] = of_logits @ weight
            if of_weight is not None:
                ctx.add(hidden[part], of_logits, of_weight)
            del of_logits  # before the next part's
        if of_weight is not None:
            of_weight = of_weight.to(weight.dtype) if ctx.buffer is None else nothing_to_add(weight)
        return of_hidden, of_weight, None, None, None, None, None


def _chunks(hidden: torch.Tensor, weight: torch.Tensor) -> Iterator[slice]:
    count = tokens_of_chunk(hidden.size(0), weight.size(0))
    for start in range(0, hidden.size(0), count):
        yield slice(start, start + count)


def _logits(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[n, v]."""
    return hidden @ weight.t()
