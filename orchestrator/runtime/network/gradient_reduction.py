"""Gradients once the last micro-batch of a global batch is done: summed over the ranks that share them, and divided by
the tokens where the loss is one per token.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads


def finalize(shared_too: list[Any], chunks: list[Any], num_tokens: torch.Tensor | None = None, **options: Any) -> None:
    """What megatron-core's schedules call. `shared_too`: chunks that have parameters on several stages beside the
    embedding; `chunks`: wrapped in data parallelism; `num_tokens`: of this rank, where the loss is one per token.
    """
    finalize_model_grads(chunks, None, **options)
    if num_tokens is not None:
        _divide(chunks, num_tokens)
    for chunk in shared_too:
        chunk.reduce_shared_gradients()


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
