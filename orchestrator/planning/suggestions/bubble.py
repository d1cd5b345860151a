"""That a pipeline idles, and what of the job as it is would make it idle less."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestrator.errors import Problem
from orchestrator.planning.forecast import Forecast
from orchestrator.planning.layout.balance import WORTH
from orchestrator.planning.plan import Plan
from orchestrator.planning.suggestions.neighbours import (
    COUNT,
    GLOBAL,
    PP,
    Fields,
    fewer_stages,
    larger_batches,
    more_chunks,
    smaller_micro_batches,
)
from orchestrator.planning.suggestions.trial import Trial, trials
from orchestrator.planning.time import StepTime
from orchestrator.quantities import time_span
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec

LARGE_BUBBLE = 0.15
"""Share of a step that a pipeline may idle before it is worth a word."""


def pipeline_idles(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """A warning, where a pipeline idles a large part of the step."""
    share = _idle(forecast.time)
    if share <= LARGE_BUBBLE:
        return
    message = (
        f"the pipeline idles {share:.0%} of the step: {plan.job.num_micro_batches} micro-batches through "
        f"{plan.job.parallelism.pipeline_model_parallel_size} stages"
    )
    ways = _ways(plan, forecast)
    none = "no single change takes less time; `orchestrator tune` searches all layouts"
    hint = "\n".join(["what takes less time per sample:", *ways]) if ways else none
    yield Problem(message, (PP, GLOBAL, COUNT), hint)


def _idle(time: StepTime) -> float:
    return time.parts.get("bubble", 0.0) / time.step_seconds


def _ways(plan: Plan, forecast: Forecast) -> list[str]:
    """The fastest of each kind on the same GPUs, the fastest first, and last what changes what is learned."""
    job = plan.job

    def better(fields: Iterable[Fields]) -> list[Trial]:
        own = forecast.time.step_seconds / job.global_batch_size
        least = _idle(forecast.time)
        found = trials(plan, forecast, fields)
        return [each for each in found if each.sample_seconds <= (1 - WORTH) * own and _idle(each.time) < least]

    found = [
        min(faster, key=lambda trial: trial.sample_seconds)
        for kind in (more_chunks(job), fewer_stages(job), smaller_micro_batches(job))
        if (faster := better(kind))
    ]
    found.sort(key=lambda trial: trial.sample_seconds)
    if larger := better(larger_batches(job, of_larger_micro_batches=False)):
        found.append(next((each for each in larger if _idle(each.time) <= LARGE_BUBBLE), larger[-1]))
    return [f"  {trial.options}: {_taken(trial, job)}" for trial in found]


def _taken(trial: Trial, job: JobSpec) -> str:
    growth = trial.job.global_batch_size // job.global_batch_size
    samples = f" of {growth} times the samples" if growth > 1 else ""
    return f"{time_span(trial.time.step_seconds)} a step{samples}, {_idle(trial.time):.0%} of it idle"
