"""Rules that several blocks have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from orchestrator.errors import Problem
from orchestrator.fields.paths import TP
from orchestrator.fields.refusals import Refusal, divisors_of, multiples_of, quotient

if TYPE_CHECKING:
    from orchestrator.models.blocks.job_fields import Job
    from orchestrator.models.registry import Feature


def by_family(job: Job[Any], feature: Feature, path: str, value: str = "") -> Iterator[Problem]:
    """The field at `path`, or this value of it, asks for a feature that the job's family has."""
    family = job.model.family
    if feature not in family.supports:
        message = f"{value} is for architecture: gpt, but architecture is {family.name}".lstrip()
        yield Problem(message, (path, "model.architecture"), "leave it out")


def by_tensor_parallel(job: Job[Any], name: str, size: int, path: str) -> Iterator[Problem]:
    """Each tensor-parallel rank holds an equal part of a size, which follows from the field at `path`."""
    tp = job.parallelism.tensor_model_parallel_size
    if size % tp:
        message = f"{name} / TP must be whole: {quotient(size, tp)}"
        offers = (divisors_of(size, TP, tp), multiples_of(tp, f"model.{name}", size))
        yield Refusal(message, (TP, path), offers=offers)
