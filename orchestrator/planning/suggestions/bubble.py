"""That a pipeline idles, and what of the job as it is would make it idle less."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestrator.errors import Problem
from orchestrator.planning.balance import WORTH
from orchestrator.planning.forecast import Forecast
from orchestrator.planning.plan import Plan
from orchestrator.planning.suggestions.trial import Trial, tried
from orchestrator.planning.time import StepTime
from orchestrator.quantities import time_span
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.rules.base import divisors

LARGE_BUBBLE = 0.15
"""Share of a step that a pipeline may idle before it is worth a word."""

PP = "parallelism.pipeline_model_parallel_size"
VP = "parallelism.virtual_pipeline_model_parallel_size"
DP = "parallelism.data_parallel_size"
MICRO, GLOBAL, COUNT = "batch.micro_batch_size", "batch.global_batch_size", "batch.num_micro_batches"
_GROWTHS = (2, 4, 8)

Fields = Mapping[str, Any]


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
        trials = [trial for each in fields if (trial := tried(plan, forecast, each)) is not None]
        least = _idle(forecast.time)
        return [each for each in trials if each.sample_seconds <= (1 - WORTH) * own and _idle(each.time) < least]

    found = [
        min(trials, key=lambda trial: trial.sample_seconds)
        for kind in (_more_chunks(job), _fewer_stages(job), _smaller_micro_batches(job))
        if (trials := better(kind))
    ]
    found.sort(key=lambda trial: trial.sample_seconds)
    if larger := better(_larger_batches(job)):
        found.append(next((each for each in larger if _idle(each.time) <= LARGE_BUBBLE), larger[-1]))
    return [f"  {trial.options}: {_taken(trial, job)}" for trial in found]


def _taken(trial: Trial, job: JobSpec) -> str:
    growth = trial.job.global_batch_size // job.global_batch_size
    samples = f" of {growth} times the samples" if growth > 1 else ""
    return f"{time_span(trial.time.step_seconds)} a step{samples}, {_idle(trial.time):.0%} of it idle"


def _more_chunks(job: JobSpec) -> Iterator[Fields]:
    degrees = job.parallelism
    most = job.model.num_layers // degrees.pipeline_model_parallel_size
    for chunks in range(degrees.num_model_chunks + 1, most + 1):
        yield {VP: chunks}


def _fewer_stages(job: JobSpec) -> Iterator[Fields]:
    """Their GPUs hold more replicas."""
    stages = job.parallelism.pipeline_model_parallel_size
    for fewer in divisors(stages)[:-1]:
        fields: dict[str, Any] = {PP: fewer}
        if job.parallelism.data_parallel_size is not None or job.launch.gpus_per_node is None:
            fields[DP] = job.data_parallel_size * stages // fewer
        if job.batch.num_micro_batches is not None:
            fields[COUNT], rest = divmod(job.num_micro_batches * fewer, stages)
            if rest:
                continue
        if fewer == 1 and job.parallelism.virtual_pipeline_model_parallel_size is not None:
            fields[VP] = None
        yield fields


def _smaller_micro_batches(job: JobSpec) -> Iterator[Fields]:
    micro = job.batch.micro_batch_size
    for smaller in divisors(micro)[:-1]:
        yield {MICRO: smaller} | _counted(job, micro // smaller)


def _larger_batches(job: JobSpec) -> Iterator[Fields]:
    for growth in _GROWTHS:
        batch = {} if job.batch.global_batch_size is None else {GLOBAL: growth * job.global_batch_size}
        yield batch | _counted(job, growth)


def _counted(job: JobSpec, growth: int) -> dict[str, Any]:
    """The micro-batches, where the spec counts them."""
    return {} if job.batch.num_micro_batches is None else {COUNT: growth * job.num_micro_batches}
