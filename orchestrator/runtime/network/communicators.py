"""Communicators that a step first uses when memory is at its fullest: gradients and their norm are reduced behind the
passes, when torch's allocator may hold all of a GPU. NCCL gets no buffers then, and asks nobody to give some back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from orchestrator.runtime.processes.device import Device


def connect(chunks: Sequence[Any], optimizers: Iterable[Any], device: Device) -> None:
    """Have NCCL make them, before the first pass. `chunks`: wrapped in data parallelism; `optimizers`: megatron-core's,
    of all weights but experts' and of those. Every rank must call this.
    """
    if not device.is_cuda:
        return
    token = torch.zeros(1, device=device.torch_device)
    for group in dict.fromkeys(_groups(chunks, optimizers)):
        dist.all_reduce(token, group=group)


def _groups(chunks: Sequence[Any], optimizers: Iterable[Any]) -> Iterator[dist.ProcessGroup]:
    """In the same order on all ranks that share any of them. An embedding that two stages share is not among them: its
    weights were summed as it was made, over the group that its gradients are.
    """
    for chunk in chunks:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            yield buffer.data_parallel_group
        if (others := getattr(chunk, "other_groups", None)) is not None:  # of hybrid sharding
            yield others
    if chunks[0].config.calculate_per_token_loss:  # the last stage tells the others how many tokens there were
        yield parallel_state.get_pipeline_model_parallel_group()
        yield parallel_state.get_data_parallel_group(with_context_parallel=True)
    for each in optimizers:
        yield each.get_grad_stats_parallel_group()
