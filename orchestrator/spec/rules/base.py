"""What the rules share: sizes of a job that follow from several sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from orchestrator.errors import Problem
from orchestrator.fields.refusals import Unavailable
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.layout.ramp import BatchStage, batch_sizes, batch_stages

Rule: TypeAlias = Callable[[JobSections], Iterator[Problem]]
"""Yields what is wrong with a job. A rule that reads a field that is not known is skipped."""


def replicas(job: JobSections) -> int:
    """DP; Unavailable when the world size does not divide into replicas, which has its own problem."""
    model_parallel = job.parallelism.model_parallel_size
    world = job.world_size
    if world % model_parallel or world < model_parallel:
        raise Unavailable("data_parallel_size")
    if job.parallelism.data_parallel_size not in (None, world // model_parallel):
        raise Unavailable("data_parallel_size")
    return world // model_parallel


def micro_batches(job: JobSections) -> int:
    """Micro-batches per step; Unavailable when the global batch does not divide into them."""
    one_pass = job.batch.micro_batch_size * replicas(job)
    if job.global_batch_size % one_pass:
        raise Unavailable("num_micro_batches")
    return job.global_batch_size // one_pass


_MOST_INCREMENTS = 10_000


def stages_of(job: JobSections) -> tuple[BatchStage, ...]:
    """How the global batch grows; Unavailable for a ramp of a length that nobody means."""
    rampup, full = job.batch.rampup_batch_size, job.global_batch_size
    if rampup is not None and full - rampup.start_global_batch_size > _MOST_INCREMENTS * rampup.increment:
        raise Unavailable("samples of a step")
    one_pass = job.batch.micro_batch_size * replicas(job)
    return batch_stages(*batch_sizes(full, one_pass, rampup), one_pass)
