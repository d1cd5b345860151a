"""One training step and one evaluation step: forward, loss, backward over all micro-batches of a global batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func

from orchestrator.runtime.batches import MicroBatch


def loss_function(loss_mask: torch.Tensor, per_token: bool, output: torch.Tensor) -> tuple[Any, ...]:
    """Mean cross entropy over the tokens that count. `output`: loss per token, [b, s].

    With `per_token` megatron-core divides the summed gradients by the tokens of the whole global batch, so that each
    token weighs the same however the batch is cut; else each micro-batch is averaged by itself, which is the same
    when every token counts, and cheaper.
    """
    losses, mask = output.float().view(-1), loss_mask.view(-1)
    total, count = (losses * mask).sum(), mask.sum()
    report = {"loss": torch.stack([total.detach(), count.detach()])}
    # A loss can be infinite (the true token's logit overflowed) while its gradient is finite. Times 1, or times NaN:
    # so every rank sees it in the gradient's norm and skips the step.
    total = total * (1 + 0 * total.detach())
    if per_token:
        return total, count.to(torch.int), report
    return total / count.clamp(min=1), report


def forward_step(per_token: bool, batches: Iterator[MicroBatch], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
    """Run one model chunk on the next micro-batch."""
    batch = next(batches)
    output = model(batch.tokens, batch.position_ids, None, labels=batch.labels)
    return output, lambda result: loss_function(batch.loss_mask, per_token, result)


def run_micro_batches(
    chunks: list[Any],
    iterators: Sequence[Iterator[MicroBatch]],
    *,
    num_micro_batches: int,
    micro_batch_size: int,
    seq_length: int,
    forward_only: bool,
) -> torch.Tensor | None:
    """Forward (and backward) over the micro-batches of one global batch on this replica.

    Returns [sum of token losses, tokens that counted] on the device, on the last stage; None elsewhere.
    """
    several = len(chunks) > 1
    per_token = bool(chunks[0].config.calculate_per_token_loss)
    reports = get_forward_backward_func()(
        forward_step_func=lambda batches, model: forward_step(per_token, batches, model),
        data_iterator=list(iterators) if several else iterators[0],
        model=chunks if several else chunks[0],
        num_microbatches=num_micro_batches,
        seq_length=seq_length,
        micro_batch_size=micro_batch_size,
        forward_only=forward_only,
    )
    if not reports:
        return None
    return torch.stack([report["loss"] for report in reports]).double().sum(dim=0)
