"""What a process takes on a GPU beyond what torch has allocated: estimates, rounded up.

Read it as the reason why a job that needs all of the memory does not run, not as a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from orchestrator.kernel_selection.tensor_overlap import overlaps_tensor_parallel
from orchestrator.models.layers import blocks_in_layers
from orchestrator.planning.hardware.fitted_constants import fitted_constants
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.precision import DTYPE_BYTES
from orchestrator.spec.sections.runtime import Layers

MIB = 2**20
_ALWAYS = 4
"""Communicators of every job: of all ranks, of the loss, of the gradients and of their norm."""
_GATHERING, _KEPT_IN_BF16, _SUMMING = 6, 2, 4
"""Transformer Engine's user buffers, each for [s * b / CP, h]: those that gather what a product reads, in FP8 where it
does; those that gather or sum whole behind another product; those that sum what a product gives in pieces, with room
for the pieces of the other ranks.
"""


class NonTorchMemory(NamedTuple):
    """Bytes that the allocator does not count."""

    fixed: int
    fragmentation: float
    """Of what is made and freed in every step."""

    def device_bytes(self, parts: Mapping[str, int]) -> int:
        """What must fit into the GPU when these parts are allocated."""
        moving = sum(parts.get(part, 0) for part in ("activations", "logits", "temporary"))
        return sum(parts.values()) + int(moving * self.fragmentation) + self.fixed


def outside_the_allocator(job: JobSpec, layers: Layers) -> NonTorchMemory:
    """The context, what every job uses, a communicator for every kind of group of more than one rank, also for the
    stages that share an embedding, and buffers where tensor parallelism overlaps. Nothing on the CPU.
    """
    if job.runtime.device == "cpu":
        return NonTorchMemory(0, 0.0)
    degrees = job.parallelism
    sizes = (
        degrees.tensor_model_parallel_size,
        degrees.pipeline_model_parallel_size,
        degrees.context_parallel_size,
        job.data_parallel_size,
        degrees.expert_model_parallel_size,
    )
    groups = sum(size > 1 for size in sizes) + sum(block.communicators for block in blocks_in_layers(job.model))
    groups += job.shares_embedding and degrees.pipeline_model_parallel_size > 1
    groups += job.sharded_copies > 1  # ranks of other groups that keep the same elements
    buffers = 0
    if overlaps_tensor_parallel(job, layers):
        groups += 1  # over which the buffers are opened
        buffers = _user_buffers(job)
    fitted = fitted_constants().memory
    outside = fitted.context_mib + (_ALWAYS + groups) * fitted.communicator_mib
    return NonTorchMemory(outside * MIB + buffers, fitted.fragmentation)


def _user_buffers(job: JobSpec) -> int:
    degrees, tp = job.parallelism, job.parallelism.tensor_model_parallel_size
    tokens = job.model.seq_length * job.batch.micro_batch_size // degrees.context_parallel_size
    whole = tokens * job.model.hidden_size * DTYPE_BYTES[job.precision.dtype]
    gathering = _GATHERING * whole // (1 if job.precision.fp8 is None else 2)
    return gathering + _KEPT_IN_BF16 * whole + _SUMMING * whole * (2 * tp - 1) // tp
