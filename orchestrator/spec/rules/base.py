"""What the rules share: the signal that a field is not known, and the values that a refusal offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple, TypeAlias

from orchestrator.errors import Problem
from orchestrator.fields.values import MAX_SIZE
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.layout.ramp import BatchStage, batch_sizes, batch_stages

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


class SuggestedValues(NamedTuple):
    """Values for a field that may end a refusal; nearest.py tries them."""

    path: str
    below: Sequence[float]
    """Less than it has, nearest first."""
    above: Sequence[float]
    note: str = ""
    """Follows what is offered; `{}` in it is the first of that."""


@dataclass(frozen=True)
class Refusal(Problem):
    """A problem that another value of a field may end. Its hint says what else would."""

    offers: tuple[SuggestedValues, ...] = ()
    """In the order in which the values go before the hint."""


def divisors(number: int) -> list[int]:
    """All divisors, smallest first; none of a number below 1."""
    small = [value for value in range(1, isqrt(max(number, 0)) + 1) if number % value == 0]
    return [*small, *(number // value for value in reversed(small) if value * value != number)]


def divisors_of(number: int, path: str, present: int) -> SuggestedValues:
    """Divisors of a number for a field that has another value."""
    legal = divisors(number)
    below = tuple(value for value in reversed(legal) if value < present)
    return SuggestedValues(path, below, tuple(value for value in legal if value > present))


def multiples_of(unit: int, path: str, present: int, less: int = 0, note: str = "") -> SuggestedValues:
    """Multiples of a unit, each less so many, for a field that has another value."""
    above = (present + less) // unit * unit + unit - less
    below = -(-(present + less) // unit) * unit - unit - less
    return SuggestedValues(path, range(below, 0, -unit), range(above, MAX_SIZE + 1, unit), note)


def around(path: str, present: int) -> SuggestedValues:
    """Any other value: the rules say which."""
    return multiples_of(1, path, present)


def quotient(number: int, divisor: int) -> str:
    """`20 / 3 = 6.667`."""
    return f"{number} / {divisor} = {ratio(number, divisor)}"


def ratio(number: int, divisor: int) -> str:
    """`6.667` for 20 / 3; `1024.5`, where four digits would look whole."""
    whole, rest = divmod(number, divisor)
    if rest == 0:
        return str(whole)
    texts = (f"{number / divisor:.{digits}g}" for digits in range(4, 18))
    return next((text for text in texts if float(text) % 1), f"{whole} + {rest} / {divisor}")
