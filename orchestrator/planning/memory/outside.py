"""What a process takes on a GPU beyond what torch has allocated: estimates, rounded up.

Read it as the reason why a job that needs all of the memory does not run, not as a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.spec.job import JobSpec

MIB = 2**20
_CONTEXT = 640 * MIB
"""CUDA's context and the loaded kernels of torch, cuBLAS and cuDNN, on an H200."""
_COMMUNICATOR = 448 * MIB
"""NCCL's buffers of one communicator, of one rank too: 4 MiB for each of its channels and directions, and smaller ones.
On H200s they took 0.4 to 0.5 GiB.
"""
_ALWAYS = 4
"""Communicators of every job: of all ranks, of the loss, of the gradients and of their norm."""
_FRAGMENTATION = 0.03
"""Of what is made and freed in every step: the caching allocator holds on to partly free blocks."""


@dataclass(frozen=True)
class Outside:
    """Bytes that the allocator does not count."""

    fixed: int

    def device_bytes(self, parts: Mapping[str, int]) -> int:
        """What must fit into the GPU when these parts are allocated."""
        moving = sum(parts.get(part, 0) for part in ("activations", "logits", "temporary"))
        return sum(parts.values()) + int(moving * _FRAGMENTATION) + self.fixed


def outside_the_allocator(job: JobSpec) -> Outside:
    """The context, what every job uses, and a communicator for every kind of group of more than one rank."""
    degrees = job.parallelism
    sizes = (
        degrees.tensor_model_parallel_size,
        degrees.pipeline_model_parallel_size,
        degrees.context_parallel_size,
        job.data_parallel_size,
    )
    groups = sum(size > 1 for size in sizes)
    return Outside(_CONTEXT + (_ALWAYS + groups) * _COMMUNICATOR)
