"""Tensor parallelism that sends while it multiplies: what rules it out.

It is Transformer Engine's (2.11) user buffers, by way of megatron-core's `tp_comm_overlap`: a matrix product is cut
into a piece per rank, and copy engines move one piece while another is multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.models.blocks.registry import FEATURES, ruled_out
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.base import Rule

OVERLAP = "parallelism.tp_comm_overlap"
_SIZES = (2, 4, 8)
"""Of those that can open each other's memory (CUDA IPC, up to 8) what Transformer Engine has kernels for: for others
some are not started, and nothing is said.
"""
_SUMMED_TOGETHER = 32
"""Elements. Where pieces are of no multiple of it, the kernel sums them shifted, and says so in debug builds alone."""
_FURTHEST = 2**31
"""Bytes from the beginning of a buffer: Transformer Engine counts them in 32 bits."""


def obstacles(job: JobSections) -> Iterator[tuple[str, str]]:
    """Fields that rule it out, each with the reason. Of jobs without tensor parallelism nothing is said."""
    degrees, model, runtime, narrow = job.parallelism, job.model, job.runtime, job.precision.quantization
    if degrees.tensor_model_parallel_size == 1:
        return
    if not degrees.uses_sequence_parallel:
        yield "parallelism.sequence_parallel", "without sequence parallelism, whole tensors are summed at once"
    tp = degrees.tensor_model_parallel_size
    if tp > job.processes_per_node or tp not in _SIZES:
        yield "parallelism.tensor_model_parallel_size", "the 2, 4 or 8 ranks of a layer must share a machine"
    if runtime.layers == "torch" or runtime.device == "cpu":
        field = "runtime.layers" if runtime.layers == "torch" else "runtime.device"
        yield field, "it needs Transformer Engine's layers, on GPUs"
    if not FEATURES["tensor_overlap"].goes_with(model.family):
        yield "model.architecture", "it was measured only for decoders"
    if not model.attention.supports("tensor_overlap"):
        yield f"model.{model.attention.field}", "it was not measured with this attention"
    yield from ruled_out(job, "tensor_overlap")
    if runtime.train_step is not None:
        yield "runtime.train_step", "a custom step may compute on other shapes than a micro-batch's"
    if job.precision.dtype != "bf16":
        yield "precision.dtype", "its buffers are bf16"
    if narrow is not None and (narrow.scales_blocks or any(narrow.ends_in_bf16)):
        yield f"precision.{narrow.field}", "its buffers need tensors with one scale, in every layer"
    yield from _sizes(job)


def _sizes(job: JobSections) -> Iterator[tuple[str, str]]:
    """What rules it out about the pieces that are sent: of each rank its part of a micro-batch."""
    degrees, hidden = job.parallelism, job.model.hidden_size
    tp = degrees.tensor_model_parallel_size
    tokens = job.model.seq_length // degrees.context_parallel_size * job.batch.micro_batch_size
    piece = tokens // tp * hidden
    if piece % _SUMMED_TOGETHER:
        yield (
            "model.hidden_size",
            f"it sums {_SUMMED_TOGETHER} elements at a time, and a rank's part of a micro-batch is {tokens // tp} · "
            f"{hidden} elements",
        )
    # Behind the pieces that a rank computes are those that it gets, of the ranks but one.
    if 2 * piece * (2 * tp - 2) >= _FURTHEST:
        yield "batch.micro_batch_size", f"{tokens} tokens of {hidden} elements are too many for its buffers"


def overlapped_tensor_parallel(job: JobSections) -> Iterator[Problem]:
    """What is asked for in words is had, or refused."""
    if job.parallelism.tp_comm_overlap:
        for field, reason in obstacles(job):
            message = f"overlapped tensor parallelism is not possible: {reason}"
            yield Problem(message, (OVERLAP, field), "leave it out")


RULES: tuple[Rule, ...] = (overlapped_tensor_parallel,)
