"""Whether replicas exchange gradients and parameters beside the passes, and how many at a time."""

from __future__ import annotations

from orchestrator.spec.job import JobSpec


def overlaps_reduction(job: JobSpec, *, captured: bool) -> bool:
    """Whether gradients are reduced while others are computed; no communication is part of passes that are captured."""
    return job.parallelism.overlap_grad_reduce and job.weight_replicas > 1 and not captured


def overlaps_gathering(job: JobSpec, *, captured: bool) -> bool:
    """Whether parameters are gathered while the first of them compute."""
    degrees = job.parallelism
    sharded = degrees.overlaps_param_gather and degrees.use_distributed_optimizer
    return sharded and overlaps_reduction(job, captured=captured)


def bucket_size(job: JobSpec) -> int:
    """Parameters whose gradients are reduced together."""
    return max(40_000_000, 1_000_000 * job.data_parallel_size)
