"""A job's neighbours along one axis: the fields that change, with what has to change beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.fields.refusals import divisors
from orchestrator.spec.job import JobSpec

PP = "parallelism.pipeline_model_parallel_size"
VP = "parallelism.virtual_pipeline_model_parallel_size"
CP = "parallelism.context_parallel_size"
DP = "parallelism.data_parallel_size"
MICRO, GLOBAL, COUNT = "batch.micro_batch_size", "batch.global_batch_size", "batch.num_micro_batches"
_GROWTHS = (2, 4, 8)

Fields = Mapping[str, Any]


def more_chunks(job: JobSpec) -> Iterator[Fields]:
    """Of each stage of a pipeline."""
    degrees = job.parallelism
    most = job.model.num_layers // degrees.pipeline_model_parallel_size
    for chunks in range(degrees.num_model_chunks + 1, most + 1):
        yield {VP: chunks}


def fewer_stages(job: JobSpec) -> Iterator[Fields]:
    """Their GPUs hold more replicas, each with fewer micro-batches."""
    degrees = job.parallelism
    stages = degrees.pipeline_model_parallel_size
    says_replicas = degrees.data_parallel_size is not None or job.launch.gpus_per_node is None
    for fewer in divisors(stages)[:-1]:
        if (counted := _counted(job, fewer, stages)) is not None:
            replicas = {DP: job.data_parallel_size * stages // fewer} if says_replicas else {}
            alone = {VP: None} if fewer == 1 and degrees.virtual_pipeline_model_parallel_size is not None else {}
            yield {PP: fewer, **replicas, **counted, **alone}


def smaller_context_parallelism(job: JobSpec) -> Iterator[Fields]:
    """More replicas in place of ranks that share a sequence, each with fewer micro-batches."""
    degree, replicas = job.parallelism.context_parallel_size, job.parallelism.data_parallel_size
    for factor in divisors(degree)[1:]:
        if (counted := _counted(job, 1, factor)) is not None:
            yield {CP: degree // factor, **({} if replicas is None else {DP: replicas * factor}), **counted}


def smaller_micro_batches(job: JobSpec) -> Iterator[Fields]:
    """More of them for the same global batch."""
    micro = job.batch.micro_batch_size
    for smaller in divisors(micro)[:-1]:
        yield {MICRO: smaller, **(_counted(job, micro // smaller) or {})}


def larger_micro_batches(job: JobSpec) -> Iterator[Fields]:
    """Fewer of them for the same global batch."""
    for growth in divisors(job.num_micro_batches)[1:]:
        yield {MICRO: growth * job.batch.micro_batch_size, **(_counted(job, 1, growth) or {})}


def larger_batches(job: JobSpec, *, of_larger_micro_batches: bool) -> Iterator[Fields]:
    """Of more micro-batches, or of as many that are larger."""
    for growth in _GROWTHS:
        batch = {} if job.batch.global_batch_size is None else {GLOBAL: growth * job.global_batch_size}
        larger = {MICRO: growth * job.batch.micro_batch_size}
        yield batch | (larger if of_larger_micro_batches else _counted(job, growth) or {})


def fewer_gpus(job: JobSpec) -> Iterator[Fields]:
    """Whole machines first, then those of the one that is left, with larger micro-batches for fewer replicas."""
    replicas = job.parallelism.data_parallel_size
    for factor in _GROWTHS:
        fields = _part_of_the_gpus(job, factor)
        if fields is None or job.data_parallel_size % factor:
            return
        if replicas is not None:
            fields[DP] = replicas // factor
        yield fields | {MICRO: factor * job.batch.micro_batch_size}


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


def _counted(job: JobSpec, times: int, per: int = 1) -> dict[str, int] | None:
    """The micro-batches where the spec counts them, `times`/`per` of those there are; None where they do not divide."""
    if job.batch.num_micro_batches is None:
        return {}
    count, rest = divmod(job.num_micro_batches * times, per)
    return None if rest else {COUNT: count}
