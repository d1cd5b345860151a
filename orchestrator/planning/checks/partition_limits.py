"""What a cluster cannot give a job: its request compared with the cluster's profile, before anything is submitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from orchestrator.errors import Problem
from orchestrator.fields.formatting import any_of
from orchestrator.fields.refusals import Unavailable
from orchestrator.fields.values import megabytes
from orchestrator.quantities import spec_duration
from orchestrator.spec.cluster import ClusterSpec, PartitionSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.messages.suggestions import closest

_LAYOUT = (
    "launch.gpus_per_node",
    "launch.nodes",
    "parallelism.tensor_model_parallel_size",
    "parallelism.pipeline_model_parallel_size",
    "parallelism.context_parallel_size",
    "parallelism.data_parallel_size",
)
"""What decides how many processes a node has, the first to be pointed at first."""


def what_is_refused(job: JobSpec, cluster: ClusterSpec) -> list[Problem]:
    """Everything that the cluster cannot give, each with the nearest that it can. What is not known is not checked,
    also of a job of which only part is.
    """
    unknown = list(_unknown_partitions(job, cluster))
    if unknown:
        return unknown
    limits = _limits(job, cluster)
    found: list[Problem] = []
    for check in CHECKS:
        with suppress(Unavailable):
            found += check(job, cluster, limits)
    return found


def partition_of(job: JobSpec, cluster: ClusterSpec) -> str | None:
    """Where the job will wait: one partition, several with commas between, or None for the cluster's own default."""
    return job.launch.partition or cluster.partition


def memory_of_node(job: JobSpec, cluster: ClusterSpec) -> int | None:
    """Bytes that a job gets of each node's memory; None where that is not known."""
    asked, most = job.launch.memory_per_node or cluster.memory_per_node, _limits(job, cluster).most.memory_per_node
    known = [size for size in (megabytes(asked) if asked is not None else 0, most) if size]
    return min(known) * 2**20 if known else None


class Limits(NamedTuple):
    """The most that one of several partitions gives; None for what is not known of each."""

    where: str
    """Them in words: `partition gpu of alps`."""
    names: tuple[str, ...]
    most: PartitionSpec


def _limits(job: JobSpec, cluster: ClusterSpec) -> Limits:
    named = partition_of(job, cluster)
    names = tuple(named.split(",")) if named is not None else tuple(cluster.partitions)
    known = [cluster.partitions[name] for name in names if name in cluster.partitions]
    most = {}
    for field in PartitionSpec.model_fields:
        values = [getattr(partition, field) for partition in known]
        most[field] = max(values) if values and None not in values else None
    several = f"partitions {any_of(list(names))}" if len(names) > 1 else f"partition {''.join(names)}"
    where = f"{several} of {cluster.name}" if named is not None else f"the largest partition of {cluster.name}"
    return Limits(where, names, PartitionSpec(**most))


def _elsewhere(cluster: ClusterSpec, limits: Limits, fits: Callable[[PartitionSpec], bool]) -> list[str]:
    """Ways out by another partition."""
    others = [name for name, partition in cluster.partitions.items() if name not in limits.names and fits(partition)]
    return [f"launch.partition: {others[0]}"] if others else []


def _unknown_partitions(job: JobSpec, cluster: ClusterSpec) -> Iterator[Problem]:
    known = list(cluster.partitions)
    for name in (job.launch.partition or "").split(",") if known and job.launch.partition else ():
        if name not in known:
            near = closest(name, known)
            hint = f"did you mean {' or '.join(near)}?\n" if near else ""
            message = f"{cluster.name} has no partition {name}"
            hint = f"{hint}partitions: {', '.join(known)}"
            yield Problem(message, ("launch.partition",), hint, code="unknown_partition")


def _nodes(job: JobSpec, cluster: ClusterSpec, limits: Limits) -> Iterator[Problem]:
    wanted, most = job.launch.nodes, limits.most.nodes
    if most is not None and wanted > most:
        ways = [f"launch.nodes: {most}", *_elsewhere(cluster, limits, lambda other: (other.nodes or 0) >= wanted)]
        message = f"{wanted} nodes are requested, but {limits.where} allows at most {most}"
        yield Problem(message, ("launch.nodes",), f"write {' or '.join(ways)}", code="too_many_nodes")


def _gpus(job: JobSpec, cluster: ClusterSpec, limits: Limits) -> Iterator[Problem]:
    wanted, most = job.processes_per_node, limits.most.gpus_per_node
    if most is None or wanted <= most or job.runtime.device == "cpu":
        return
    derived = (
        "" if job.launch.gpus_per_node else f" (TP · PP · CP · DP / nodes = {job.world_size} / {job.launch.nodes})"
    )
    has = f"nodes of {limits.where} have {most}" if most else f"{limits.where} has none"
    ways = []
    if most and job.world_size % most == 0 and job.world_size // most <= (limits.most.nodes or job.world_size):
        ways = [f"launch.nodes: {job.world_size // most} and launch.gpus_per_node: {most}"]
    ways += _elsewhere(cluster, limits, lambda other: (other.gpus_per_node or 0) >= wanted)
    ways += ["runtime.device: cpu, to train without"] if most == 0 else []
    hint = (
        f"write {' or '.join(ways)}" if ways else f"lower the parallel degrees: {job.world_size} processes do not fit"
    )
    message = f"{wanted} GPUs per node are requested{derived}, but {has}"
    yield Problem(message, _LAYOUT, hint, code="too_many_gpus")


def _cpus(job: JobSpec, cluster: ClusterSpec, limits: Limits) -> Iterator[Problem]:
    each, processes, most = cluster.cpus_per_gpu, job.processes_per_node, limits.most.cpus_per_node
    if each is None or most is None or each * processes <= most:
        return
    message = (
        f"{processes} processes x {each} CPUs = {processes * each} CPUs per node are requested (cpus_per_gpu of "
        f"{cluster.name}), but nodes of {limits.where} have {most}"
    )
    fewer = f"cpus_per_gpu: {most // processes} in the profile" if most >= processes else "fewer processes on a node"
    ways = [fewer, *_elsewhere(cluster, limits, lambda other: (other.cpus_per_node or 0) >= each * processes)]
    yield Problem(message, _LAYOUT, f"write {' or '.join(ways)}", code="too_many_cpus")


def _memory(job: JobSpec, cluster: ClusterSpec, limits: Limits) -> Iterator[Problem]:
    written, most = job.launch.memory_per_node or cluster.memory_per_node, limits.most.memory_per_node
    if written is None or most is None or megabytes(written) <= most:
        return
    wanted = megabytes(written)
    whose = "" if job.launch.memory_per_node else f" (memory_per_node of {cluster.name})"
    message = f"{wanted} MB per node are requested{whose}, but nodes of {limits.where} have {most} MB"
    ways = [f"launch.memory_per_node: {most}M (0: all of a node)"]
    ways += _elsewhere(cluster, limits, lambda other: (other.memory_per_node or 0) >= wanted)
    yield Problem(message, ("launch.memory_per_node",), f"write {' or '.join(ways)}", code="too_much_memory")


def _time(job: JobSpec, cluster: ClusterSpec, limits: Limits) -> Iterator[Problem]:
    wanted, most = job.launch.time or cluster.time, limits.most.time_limit
    if wanted is None or most is None or wanted <= most:
        return
    whose = "" if job.launch.time else f" (time of {cluster.name})"
    limit = spec_duration(most)
    message = f"a time of {spec_duration(wanted)} is requested{whose}, but {limits.where} allows at most {limit}"
    ways = [f"launch.time: {limit}"]
    ways += _elsewhere(cluster, limits, lambda other: other.time_limit is not None and other.time_limit >= wanted)
    hint = f"write {' or '.join(ways)}\na run that is not done by then saves, is requeued and continues"
    yield Problem(message, ("launch.time",), hint, code="time_above_limit")


def _stop_margin(job: JobSpec, cluster: ClusterSpec, limits: Limits) -> Iterator[Problem]:
    time, margin = job.launch.time or cluster.time, job.launch.stop_margin
    if time is not None and margin >= time:
        early, limit = spec_duration(margin), spec_duration(time)
        message = f"a run should save and stop {early} before its time limit, but that is {limit}"
        hint = "write a longer launch.time, or a shorter margin"
        yield Problem(message, ("launch.stop_margin", "launch.time"), hint, code="stop_margin_above_time")


CHECKS = (_nodes, _gpus, _cpus, _memory, _time, _stop_margin)
