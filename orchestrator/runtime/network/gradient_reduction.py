"""Gradients once the last micro-batch of a global batch is done: summed over the ranks that share them, and divided by
the tokens where the loss is one per token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.transformer import TransformerConfig


def finalize(shared_too: list[Any], chunks: list[Any], num_tokens: torch.Tensor | None = None, **options: Any) -> None:
    """What megatron-core's schedules call. `shared_too`: chunks that have parameters on several stages beside the
    embedding; `chunks`: wrapped in data parallelism; `num_tokens`: of this rank, where the loss is one per token.
    """
    finalize_model_grads(chunks, None, **options)
    if num_tokens is not None:
        _divide(chunks, num_tokens)
    for chunk in shared_too:
        chunk.reduce_shared_gradients()


def loss_scaling(
    config: TransformerConfig, chunks: list[Any], optimizer: Any
) -> Callable[[torch.Tensor], torch.Tensor]:
    """What megatron-core's schedules multiply every loss by before its backward pass (`grad_scale_func`).

    The average over replicas is part of it: megatron-core would multiply every gradient by it, which is one more pass
    over all buffers. In fp16 it still does: a loss that is smaller than the loss scale says loses small gradients.
    `chunks`: wrapped in data parallelism.
    """
    if config.fp16 or config.calculate_per_token_loss:
        scale: Callable[[torch.Tensor], torch.Tensor] = optimizer.scale_loss
        return scale
    share = 1.0 / parallel_state.get_data_parallel_world_size(with_context_parallel=True)
    for chunk in chunks:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            for bucket in buffer.buckets:
                assert bucket.gradient_scaling_factor == share, "megatron-core averages over replicas"
                bucket.gradient_scaling_factor = 1.0
    return lambda loss: optimizer.scale_loss(loss) * share


def _divide(chunks: list[Any], num_tokens: torch.Tensor) -> None:
    """megatron-core 0.16 asks on the host whether there are any tokens, which waits for all that was started: what the
    optimizer does before its first kernel would then be waited for too. Later ones divide as is done here. Gradients
    of a batch without tokens are left as they are.
    """
    last = parallel_state.get_pipeline_model_parallel_last_rank()
    torch.distributed.broadcast(num_tokens, src=last, group=parallel_state.get_pipeline_model_parallel_group())
    torch.distributed.all_reduce(num_tokens, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    share = 1.0 / num_tokens.clamp(min=1)
    for chunk in chunks:
        chunk.scale_gradients(share)
