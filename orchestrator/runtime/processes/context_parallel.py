"""Context parallelism: the sequence is cut into 2 · CP chunks, and rank r holds chunks r and 2 · CP - 1 - r.

Under causal attention a later chunk looks at more keys than an earlier one. One of each end gives every rank the same
work (the zigzag of Llama 3's training, "The Llama 3 Herd of Models", 2024, section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

from orchestrator.runtime.processes.process_groups import get_context_parallel_group

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Causal attention of queries [sq, b, heads, d], the last sq positions of keys [sk, b, groups, d] and values
[sk, b, groups, v]; the result is [sq, b, heads * v]."""


def slice_batch(batch: dict[str, torch.Tensor], seq_length: int, rank: int, size: int) -> dict[str, torch.Tensor]:
    """A micro-batch with this rank's two chunks of every field whose second dimension is the sequence."""
    if size == 1:
        return batch
    return {
        name: slice_sequence(field, 1, rank, size) if field.dim() > 1 and field.size(1) == seq_length else field
        for name, field in batch.items()
    }


def slice_sequence(whole: torch.Tensor, dim: int, rank: int, size: int) -> torch.Tensor:
    """Chunks `rank` and `2 · size - 1 - rank` of the 2 · size chunks of dimension `dim`, one after the other."""
    chunks = whole.chunk(2 * size, dim)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]], dim)


def over_the_sequence(count: torch.Tensor) -> torch.Tensor:
    """The sum of a number over the ranks that share this one's sequences."""
    group = get_context_parallel_group()
    if group is not None:
        count = count.clone()
        dist.all_reduce(count, group=group)
    return count


def gather_sequence(local: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """All chunks in the order of the sequence, [s, …] from this rank's [s / CP, …].

    The backward pass sums each chunk's gradient over the ranks and gives it back to its owner.
    """
    size = group.size()
    gathered = gather_from_sequence_parallel_region(local.contiguous(), tensor_parallel_output_grad=True, group=group)
    chunks = gathered.view(size, 2, -1, *gathered.shape[1:])
    ordered: torch.Tensor = torch.cat([chunks[:, 0], chunks[:, 1].flip(0)]).flatten(0, 1)
    return ordered


def attend(
    attention: Attend, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: dist.ProcessGroup
) -> torch.Tensor:
    """Causal attention over the whole sequence for this rank's queries, [s / CP, b, heads, d]; keys and values are this
    rank's, too.

    Each of the two chunks attends to the keys up to its own end, so that no mask over the whole sequence is needed.
    """
    rank, size = group.rank(), group.size()
    gathered = gather_sequence(torch.cat([key, value], dim=-1), group)
    keys, values = torch.split(gathered, [key.size(-1), value.size(-1)], dim=-1)
    length = query.size(0) // 2
    ends = (rank + 1) * length, (2 * size - rank) * length
    halves = query.chunk(2)
    return torch.cat([attention(half, keys[:end], values[:end]) for half, end in zip(halves, ends, strict=True)])
