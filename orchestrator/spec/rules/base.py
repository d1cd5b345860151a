"""What the rules share: the signal that a field is not known, and the search for legal values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from orchestrator.errors import Problem
from orchestrator.spec.ramp import BatchStage, batch_sizes, batch_stages
from orchestrator.spec.sections import JobSections

Rule: TypeAlias = Callable[[JobSections], Iterator[Problem]]
"""Yields what is wrong with a job. A rule that reads a field that is not known is skipped."""


class Unavailable(Exception):  # noqa: N818 - a signal between the rules and what runs them
    """A field that a rule reads is missing or wrong, which has its own problem."""


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


_SEARCH = 100_000
"""How far to look for a divisor: far enough for any real size, and a few milliseconds."""
_NEAR = 1_000
"""How far to look for another legal value."""


def nearest_divisors(number: int, wanted: int) -> str:
    """The divisors of a number around a value that is not one: `2 or 4`."""
    top = min(wanted, number + 1)
    below = next((value for value in range(top - 1, max(0, top - _SEARCH), -1) if number % value == 0), 1)
    above = next((value for value in range(wanted + 1, min(number, wanted + _SEARCH)) if number % value == 0), number)
    legal = sorted({value for value in (below, above) if value != wanted})
    return " or ".join(str(value) for value in legal)


def nearest_multiples(unit: int, wanted: int) -> str:
    """The multiples of a unit around a value that is not one: `192 or 256`."""
    below = wanted // unit * unit
    return f"{below} or {below + unit}" if below else str(unit)


def nearest(wanted: int, most: int, is_legal: Callable[[int], bool]) -> str:
    """The legal values from 1 to `most` around one that is not: `3 or 5`; empty when there is none near."""
    top = min(wanted - 1, most)
    below = next((value for value in range(top, max(0, top - _NEAR), -1) if is_legal(value)), None)
    above = next((value for value in range(wanted + 1, min(most, wanted + _NEAR) + 1) if is_legal(value)), None)
    return " or ".join(str(value) for value in (below, above) if value is not None)


def nearest_of(wanted: int, most: int, is_legal: Callable[[int], bool], otherwise: str) -> str:
    """`nearest`; `otherwise` where there is none, and where `is_legal` reads a field that is not known."""
    try:
        return nearest(wanted, most, is_legal) or otherwise
    except Unavailable:
        return otherwise


def quotient(number: int, divisor: int) -> str:
    """`20 / 3 = 6.67`."""
    return f"{number} / {divisor} = {number / divisor:.4g}"
