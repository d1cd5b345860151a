"""What a job whose GPUs wait for their host could do in the time that they wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestrator.planning.forecast import Forecast
from orchestrator.planning.plan import Plan
from orchestrator.planning.suggestions.trial import Trial, tried
from orchestrator.spec.job import JobSpec
from orchestrator.spec.rules.base import divisors

_DIFFERENCE = 0.05
"""Share of a step below which two take as long as each other, and above which one takes less time."""
_GROWTHS = (2, 4, 8)


def ways_to_fill(plan: Plan, forecast: Forecast) -> list[str]:
    """What the same host starts in the same time, or less time for the same: each a sentence with its options."""
    changes = [*_larger_micro_batches(plan.job), *_smaller_context_parallelism(plan.job)]
    fewer = list(_tried(plan, forecast, changes))
    step = forecast.time.step_seconds
    if fewer:
        fastest = min(fewer, key=lambda trial: trial.time.step_seconds)
        saved = 1 - fastest.time.step_seconds / step
        if saved > _DIFFERENCE:
            return [f"a step takes {saved:.0%} less with {fastest.options}"]
    found = []
    if (larger := _furthest(plan, forecast, _larger_batches(plan.job))) is not None:
        growth = larger.job.global_batch_size // plan.job.global_batch_size
        found.append(f"a step of {growth} times the samples takes as long with {larger.options}")
    if (smaller := _furthest(plan, forecast, _fewer_gpus(plan.job))) is not None:
        size = smaller.job.world_size
        found.append(f"this one takes as long on {size} GPU{'s' if size > 1 else ''} with {smaller.options}")
    return found


def _tried(plan: Plan, forecast: Forecast, changes: Iterable[Mapping[str, Any]]) -> Iterator[Trial]:
    return (trial for each in changes if (trial := tried(plan, forecast, each)) is not None)


def _furthest(plan: Plan, forecast: Forecast, changes: Iterable[Mapping[str, Any]]) -> Trial | None:
    """The last that takes no longer than the job as it is."""
    most = (1 + _DIFFERENCE) * forecast.time.step_seconds
    as_long = [each for each in _tried(plan, forecast, changes) if each.time.step_seconds <= most]
    return as_long[-1] if as_long else None


def _larger_micro_batches(job: JobSpec) -> Iterator[dict[str, Any]]:
    """Fewer of them for the same global batch."""
    count = job.num_micro_batches
    for growth in divisors(count)[1:]:
        counted = {} if job.batch.num_micro_batches is None else {"batch.num_micro_batches": count // growth}
        yield {"batch.micro_batch_size": growth * job.batch.micro_batch_size} | counted


def _smaller_context_parallelism(job: JobSpec) -> Iterator[dict[str, Any]]:
    """More replicas in place of ranks that share a sequence, each with fewer micro-batches."""
    degree, replicas, count = (
        job.parallelism.context_parallel_size,
        job.parallelism.data_parallel_size,
        job.batch.num_micro_batches,
    )
    for factor in divisors(degree)[1:]:
        fields = {"parallelism.context_parallel_size": degree // factor}
        if replicas is not None:
            fields["parallelism.data_parallel_size"] = replicas * factor
        if count is None or count % factor == 0:
            yield fields if count is None else fields | {"batch.num_micro_batches": count // factor}


def _larger_batches(job: JobSpec) -> Iterator[dict[str, Any]]:
    """As many micro-batches, each larger."""
    for growth in _GROWTHS:
        written = job.batch.global_batch_size
        batch = {} if written is None else {"batch.global_batch_size": growth * written}
        yield batch | {"batch.micro_batch_size": growth * job.batch.micro_batch_size}


def _fewer_gpus(job: JobSpec) -> Iterator[dict[str, Any]]:
    """Whole machines first, then those of the one that is left, with larger micro-batches for fewer replicas."""
    replicas = job.parallelism.data_parallel_size
    for factor in _GROWTHS:
        fields = _part_of_the_gpus(job, factor)
        if fields is None or job.data_parallel_size % factor:
            return
        if replicas is not None:
            fields["parallelism.data_parallel_size"] = replicas // factor
        yield fields | {"batch.micro_batch_size": factor * job.batch.micro_batch_size}


def _part_of_the_gpus(job: JobSpec, factor: int) -> dict[str, Any] | None:
    """What takes so many times fewer; None where they do not divide."""
    nodes, gpus = job.launch.nodes, job.launch.gpus_per_node
    if nodes % factor == 0:
        return {"launch.nodes": nodes // factor}
    if factor % nodes:
        return None
    of_each = factor // nodes
    if gpus is None:
        return {"launch.nodes": 1} if nodes > 1 else {}
    if gpus % of_each:
        return None
    return {"launch.gpus_per_node": gpus // of_each} | ({"launch.nodes": 1} if nodes > 1 else {})
