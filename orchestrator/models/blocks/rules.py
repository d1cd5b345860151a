"""Rules that several blocks have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from orchestrator.errors import Problem
from orchestrator.fields.paths import TP
from orchestrator.fields.refusals import Refusal, divisors_of, multiples_of, quotient
from orchestrator.models.blocks.registry import FEATURES

if TYPE_CHECKING:
    from orchestrator.fields.base import Section
    from orchestrator.models.blocks.job_fields import Job


def by_switch(job: Job[Any], section: type[Section], switch: str, what: str) -> Iterator[Problem]:
    """What is said of a block is said of a model that has it: the fields of its section are at their defaults where the
    one that asks for it, `switch`, is at its own.
    """
    model, fields = job.model, section.model_fields
    absent = fields[switch].default
    if getattr(model, switch) != absent:
        return
    state, others = ("not set", f"write {switch}, or ") if absent is None else (absent, "")
    for name, field in fields.items():
        if name != switch and getattr(model, name) != field.default:
            message = f"is for {what}, but {switch} is {state}"
            yield Problem(message, (f"model.{name}", f"model.{switch}"), f"{others}leave it out")


def by_family(job: Job[Any], feature: str, path: str, value: str = "") -> Iterator[Problem]:
    """The field at `path`, or this value of it, asks for a feature of a block that the job's family has."""
    family, asked = job.model.family, FEATURES[feature]
    if not asked.goes_with(family):
        names = " and ".join(each.name for each in asked.families)
        message = f"{value} is for architecture: {names}, but architecture is {family.name}".lstrip()
        yield Problem(message, (path, "model.architecture"), "leave it out")


def by_tensor_parallel(job: Job[Any], name: str, size: int, path: str) -> Iterator[Problem]:
    """Each tensor-parallel rank holds an equal part of a size, which follows from the field at `path`."""
    tp = job.parallelism.tensor_model_parallel_size
    if size % tp:
        message = f"{name} / TP must be whole: {quotient(size, tp)}"
        offers = (divisors_of(size, TP, tp), multiples_of(tp, f"model.{name}", size))
        yield Refusal(message, (TP, path), numbers=(size, tp), offers=offers)
