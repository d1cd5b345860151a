"""What a process takes on a GPU beyond what torch has allocated: estimates, rounded up.

Read it as the reason why a job that needs all of the memory does not run, not as a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.spec.job import JobSpec

MIB = 2**20
_CONTEXT = 640 * MIB
"""CUDA's context and the loaded kernels of torch, cuBLAS and cuDNN: 0.7 GiB on an H200. By the end of a training 6.6 to
7.8 GiB were taken there beside the allocator. What the rest is was not found; until it is, the margin that a verdict
leaves (fit.py) has to hold it.
"""
_COMMUNICATOR = 256 * MIB
"""NCCL's buffers of one communicator: 4 MiB for each of 16 to 32 channels and direction, and smaller ones."""
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
    """The context, and a communicator for every group of more than one rank."""
    degrees = job.parallelism
    sizes = (
        degrees.tensor_model_parallel_size,
        degrees.pipeline_model_parallel_size,
        degrees.context_parallel_size,
        job.data_parallel_size,
    )
    groups = sum(size > 1 for size in sizes)
    everyone = 1 if job.world_size > 1 else 0  # the group of all ranks
    return Outside(_CONTEXT + (groups + everyone) * _COMMUNICATOR)
