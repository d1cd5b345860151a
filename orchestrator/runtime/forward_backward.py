"""Forward, loss and backward over all micro-batches of a global batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func

from orchestrator.errors import UserError
from orchestrator.runtime.processes.context_parallel import over_the_sequence
from orchestrator.runtime.steps.base import Batch, Part, TrainStep, metrics_of


def objective(parts: Mapping[str, Part], per_token: bool, metrics: Mapping[str, Part] | None = None) -> tuple[Any, ...]:
    """What megatron-core's schedules take from a loss function. The report, {"loss": [parts, 2]}, has sums and counts;
    those of `metrics`, which are not minimised, come last.

    With `per_token` megatron-core divides the summed gradients by the tokens of the whole global batch, so that each
    token weighs the same however the batch is cut; else each micro-batch is averaged by itself, which is the same
    when every token counts, and cheaper. Raises ValueError for several parts with `per_token`: they count differently.
    """
    reported = [*parts.values(), *(metrics or {}).values()]
    report = {"loss": torch.stack([torch.stack([part.total.detach(), part.count.detach()]) for part in reported])}
    if per_token:
        if len(parts) > 1:
            raise ValueError(f"a loss per token has one part, not {', '.join(parts)}")
        [part] = parts.values()
        return _visible(part.total), part.count.to(torch.int), report
    # megatron-core multiplies it by CP and averages it over the ranks that share the sequence: what comes of it is the
    # mean over the whole sequence when each divides by what counts in all of it.
    means = [_mean(_visible(part.total), over_the_sequence(part.count)) for part in parts.values()]
    return torch.stack(means).sum(), report


def _mean(total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    return total / (count + (count == 0))


def _visible(total: torch.Tensor) -> torch.Tensor:
    # A loss can be infinite (the true token's logit overflowed) while its gradient is finite. Times 1, or times NaN:
    # so every rank sees it in the gradient's norm and skips the step.
    return total * (1 + 0 * total.detach())


def forward_step(
    step: TrainStep, per_token: bool, batches: Iterator[Batch], model: Any
) -> tuple[torch.Tensor, Callable[..., Any]]:
    """Run one model chunk on the next micro-batch."""
    batch = next(batches)
    return step.forward(model, batch), lambda output: _objective(step, step.loss(output, batch), per_token)


def _objective(step: TrainStep, given: Mapping[str, Any], per_token: bool) -> tuple[Any, ...]:
    parts = _in_order(step, given)
    metrics = {name: parts.pop(name) for name in metrics_of(step)}
    return objective(parts, per_token, metrics)


def _in_order(step: TrainStep, parts: Mapping[str, Any]) -> dict[str, Part]:
    """The parts and metrics as the step names them. Raises UserError when its loss does not give what it promises."""
    where, names = f"{type(step).__name__}.loss", (*step.parts, *metrics_of(step))
    if set(parts) != set(names):
        given, promised = ", ".join(parts) or "nothing", ", ".join(names)
        raise UserError(
            f"{where} gives {given}, and its parts are {promised}; return each of them, in any order",
            code="loss_parts_differ",
        )
    for name, part in parts.items():
        for field in (part.total, part.count):
            if not isinstance(field, torch.Tensor) or field.dim() or field.device != part.total.device:
                raise UserError(
                    f"{where} gives a part {name} whose total and count are not both tensors of no dimension on one "
                    "device; return sums over the micro-batch for both",
                    code="malformed_loss_part",
                )
    return {name: parts[name] for name in names}


def run_micro_batches(
    step: TrainStep,
    chunks: list[Any],
    iterators: Sequence[Iterator[Batch]],
    *,
    num_micro_batches: int,
    micro_batch_size: int,
    seq_length: int,
    forward_only: bool,
) -> torch.Tensor | None:
    """Forward (and backward) over the micro-batches of one global batch on this replica.

    Returns the sum and the count of each part of the loss and then of each metric, [parts, 2], on the device; None
    where there is no loss. A count is NaN where one of a loss per token was not a whole number.
    """
    several = len(chunks) > 1
    per_token = bool(chunks[0].config.calculate_per_token_loss)
    reports = get_forward_backward_func()(
        forward_step_func=lambda batches, model: forward_step(step, per_token, batches, model),
        data_iterator=list(iterators) if several else iterators[0],
        model=chunks if several else chunks[0],
        num_microbatches=num_micro_batches,
        seq_length=seq_length,
        micro_batch_size=micro_batch_size,
        forward_only=forward_only,
    )
    if not reports:
        return None
    sums = torch.stack([report["loss"] for report in reports]).double()  # [micro-batches, parts, 2]
    if per_token:  # megatron-core counts in whole numbers; NaN says it to the host without waiting for the device
        counts = sums[..., 1]
        sums[..., 1] = counts.where(counts == counts.trunc(), torch.nan)
    return sums.sum(dim=0)
