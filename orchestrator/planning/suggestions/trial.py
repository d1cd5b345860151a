"""A job with other values of some fields: whether the rules allow it, whether it fits, and what it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from orchestrator.kernel_selection.machine import Fit
from orchestrator.planning.forecast import Forecast, estimated
from orchestrator.planning.memory import capacity
from orchestrator.planning.plan import Plan
from orchestrator.planning.suggestions.changes import set_options, with_fields
from orchestrator.planning.time import StepTime
from orchestrator.spec.job import JobSpec
from orchestrator.spec.rules import refusals

_MAY_RUN: tuple[Fit, ...] = ("unknown", "fits", "tight")
"""The roomiest first."""


class Trial(NamedTuple):
    """A changed job that may run."""

    fields: Mapping[str, Any]
    job: JobSpec
    time: StepTime

    @property
    def options(self) -> str:
        """The change, as a command takes it."""
        return set_options(self.fields)

    @property
    def sample_seconds(self) -> float:
        """Seconds of a step for each sample in it: what compares jobs of several global batches on the same GPUs."""
        return self.time.step_seconds / self.job.global_batch_size


def tried(plan: Plan, forecast: Forecast, fields: Mapping[str, Any]) -> Trial | None:
    """The planned job with these fields as `plan` has it, on the GPUs that it is planned for; None where a rule refuses
    it, where it does not fit, or fits less well than as it is.

    The fields are right one by one, and none is TP, which pads the vocabulary.
    """
    job = with_fields(plan.job, fields)
    if any(refusals(job)):
        return None
    estimate = estimated(job, plan.vocabulary.padded_size, forecast.device)
    as_it_is = _MAY_RUN if forecast.fit == "does not fit" else _MAY_RUN[: _MAY_RUN.index(forecast.fit) + 1]
    if capacity(estimate.memory, forecast.device) not in as_it_is:
        return None
    return Trial(fields, estimate.job, estimate.time)


def trials(plan: Plan, forecast: Forecast, changes: Iterable[Mapping[str, Any]]) -> list[Trial]:
    """Those of the changes that may run."""
    return [trial for each in changes if (trial := tried(plan, forecast, each)) is not None]
