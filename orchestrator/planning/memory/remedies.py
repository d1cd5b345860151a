"""What to change so that a job fits into its GPUs, and what that costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from orchestrator.planning.changes import overrides, with_fields
from orchestrator.planning.memory.stages import Memory, estimate_memory
from orchestrator.planning.vocabulary import padded_vocab_size
from orchestrator.spec.job import JobSpec
from orchestrator.spec.rules import refusals
from orchestrator.spec.runtime import Layers
from orchestrator.spec.stages import layers_of_chunks
from orchestrator.spec.tensor_overlap import overlaps_tensor_parallel

Planner = Callable[[JobSpec], tuple[Memory, float]]
"""What a job needs and the seconds of its step, with all that a run would settle for it, as its own plan has them."""

_MOST_CHANGES = 3
_MOST_PRICED = 60
"""A price takes milliseconds; of the combinations that fit, the smallest come first."""


@dataclass(frozen=True)
class Change:
    """One thing to do differently, along one axis."""

    axis: str
    words: str
    """For a person: `micro-batch 2 instead of 4`."""
    fields: Mapping[str, Any]
    """New values by dotted path."""
    tensor: int = 1
    """By how much TP grows."""
    pipeline: int = 1


@dataclass(frozen=True)
class Remedy:
    """Changes with which a job fits."""

    words: str
    overrides: tuple[str, ...]
    """As `--set` takes them."""
    job: JobSpec
    memory: Memory
    gpus: int
    """GPUs that the changed job takes; more than before where model parallelism needs more of them."""
    step_seconds: float
    slower: float
    """GPU-seconds of a step over those of the job as it is, less 1: 0.1 is 10 % slower per GPU."""


def remedies(
    job: JobSpec, vocab_size: int, layers: Layers, limit_bytes: int, planned: Planner, machine: int = 8
) -> list[Remedy]:
    """The cheapest single changes and small combinations with which every stage takes at most `limit_bytes`.

    The global batch stays as it is, and no more than `machine` GPUs (or those that the job takes) are taken of one
    machine; of several machines no more than the job takes of each. Of those that change the same things, the cheapest
    is named. Cheapest first, by GPU-seconds per step; none where nothing here helps. `vocab_size` counts the tokens
    before padding.
    """
    # Who takes part of several machines has no more of them: a tensor-parallel group that is wider spans them.
    machine = max(machine, job.processes_per_node) if job.launch.nodes == 1 else job.processes_per_node
    fitting = list(itertools.islice(_fitting(job, vocab_size, layers, limit_bytes, planned, machine), _MOST_PRICED))
    if not fitting:
        return []
    before = planned(job)[1] * job.world_size
    cheapest: dict[frozenset[str], Remedy] = {}
    for changes, changed, fields, memory, seconds in fitting:
        remedy = Remedy(
            words=", ".join(change.words for change in changes),
            overrides=overrides(fields),
            job=changed,
            memory=memory,
            gpus=changed.world_size,
            step_seconds=seconds,
            slower=seconds * changed.world_size / before - 1,
        )
        axes = frozenset(change.axis for change in changes)
        if axes not in cheapest or remedy.slower < cheapest[axes].slower:
            cheapest[axes] = remedy
    worth = [
        (axes, remedy)
        for axes, remedy in cheapest.items()
        if not any(fewer < axes and other.slower <= remedy.slower for fewer, other in cheapest.items())
    ]
    worth.sort(key=lambda each: (each[1].slower, len(each[0])))
    return [remedy for _, remedy in worth]


def _fitting(
    job: JobSpec, vocab_size: int, layers: Layers, limit: int, planned: Planner, machine: int
) -> Iterator[tuple[tuple[Change, ...], JobSpec, dict[str, Any], Memory, float]]:
    """What fits, fewest changes first; nothing that does more than something before it along the same axes."""
    axes = _axes(job, machine, layers)
    found: list[frozenset[str]] = []
    for count in range(1, _MOST_CHANGES + 1):
        for chosen in itertools.combinations(axes, count):
            for changes in itertools.product(*(axes[axis] for axis in chosen)):
                words = frozenset(change.words for change in changes)
                if any(fewer <= words for fewer in found):
                    continue
                applied = _apply(job, changes, machine)
                if applied is None or any(refusals(applied[0])):
                    continue
                changed, fields = applied
                tp = changed.parallelism.tensor_model_parallel_size
                padded = padded_vocab_size(vocab_size, job.model.make_vocab_size_divisible_by, tp)
                # Most are too large with what the job leaves open still open, which is a tenth of a plan's work.
                if estimate_memory(changed, padded, layers).device_bytes > limit:
                    continue
                memory, seconds = planned(changed)
                if memory.device_bytes <= limit:
                    found.append(words)
                    yield changes, changed, fields, memory, seconds


def _axes(job: JobSpec, machine: int, layers: Layers) -> dict[str, list[Change]]:
    """What can be changed, mildest first along each axis."""
    degrees, micro = job.parallelism, job.batch.micro_batch_size
    tp, pp = degrees.tensor_model_parallel_size, degrees.pipeline_model_parallel_size
    axes: dict[str, list[Change]] = {}
    if job.weight_replicas > 1 and not degrees.use_distributed_optimizer:
        path = "parallelism.use_distributed_optimizer"
        axes["optimizer"] = [Change("optimizer", "the distributed optimizer", {path: True})]
    if tp > 1 and not degrees.uses_sequence_parallel:
        axes["sequence"] = [Change("sequence", "sequence parallelism", {"parallelism.sequence_parallel": True})]
    if job.precision.grad_reduce_in_fp32 and job.precision.dtype != "fp32":
        name = job.precision.dtype
        fields = {"precision.grad_reduce_in_fp32": False}
        axes["gradients"] = [Change("gradients", f"gradients summed in {name}", fields)]
    smaller = [size for size in range(micro - 1, 0, -1) if micro % size == 0]
    if smaller:
        words = f"instead of {micro}"
        axes["micro-batch"] = [
            Change("micro-batch", f"micro-batch {size} {words}", {"batch.micro_batch_size": size}) for size in smaller
        ]
    if not job.runtime.fused_linear_cross_entropy:
        fields = {"runtime.fused_linear_cross_entropy": True}
        axes["loss"] = [Change("loss", "the output layer and the loss joined", fields)]
    if layers == "transformer_engine" and overlaps_tensor_parallel(job):
        fields = {"parallelism.tp_comm_overlap": False}
        axes["overlap"] = [Change("overlap", "tensor parallelism not overlapped", fields)]
    axes["recompute"] = _recomputation(job)
    axes["tensor"] = [
        # Sequence parallelism comes with it: without, the ranks of a group hold much the same activations.
        Change("tensor", f"TP {tp * factor}", {"parallelism.sequence_parallel": True}, tensor=factor)
        for factor in (2, 4, 8)
        if tp * factor <= machine
    ]
    axes["pipeline"] = [Change("pipeline", f"PP {pp * factor}", {}, pipeline=factor) for factor in (2, 4, 8)]
    return {axis: changes for axis, changes in axes.items() if changes}


def _recomputation(job: JobSpec) -> list[Change]:
    runtime, degrees = job.runtime, job.parallelism
    if runtime.recompute_granularity == "full" and runtime.recompute_method == "uniform":
        return []
    layers = max(held for stage in layers_of_chunks(job.model.num_layers, degrees) for held in stage)
    path = "runtime.recompute_"
    full: dict[str, Any] = {f"{path}granularity": "full", f"{path}num_layers": 1}
    # What the spec rules out beside whole layers goes, where the job has it.
    if runtime.recompute_modules is not None:
        full[f"{path}modules"] = None
    if runtime.cpu_offloading_num_layers is not None:
        full["runtime.cpu_offloading_num_layers"] = None
    changes = [
        Change(
            "recompute",
            f"{count} of {layers} layers recomputed",
            {**full, f"{path}method": "block", f"{path}num_layers": count},
        )
        for count in sorted({layers // 4, layers // 2, 3 * layers // 4} - {0})
        if runtime.recompute_granularity != "full" or count > (runtime.recompute_num_layers or 1)
    ]
    return [*changes, Change("recompute", "all layers recomputed", {**full, f"{path}method": "uniform"})]


def _apply(job: JobSpec, changes: tuple[Change, ...], machine: int) -> tuple[JobSpec, dict[str, Any]] | None:
    """The changed job, unchecked, and all fields that differ; None where the global batch could not stay."""
    fields: dict[str, Any] = {}
    for change in changes:
        fields.update(change.fields)
    degrees = job.parallelism
    tensor, pipeline = prod(change.tensor for change in changes), prod(change.pipeline for change in changes)
    growth, replicas = tensor * pipeline, job.data_parallel_size
    if growth > 1:
        if tensor > 1:
            fields["parallelism.tensor_model_parallel_size"] = degrees.tensor_model_parallel_size * tensor
        if pipeline > 1:
            fields["parallelism.pipeline_model_parallel_size"] = degrees.pipeline_model_parallel_size * pipeline
        # Replicas are given up for it; where they do not divide, more GPUs are taken.
        shared = gcd(replicas, growth)
        replicas //= shared
        if degrees.data_parallel_size is not None:
            fields["parallelism.data_parallel_size"] = replicas
        if growth > shared:
            more = _more_gpus(job, growth // shared, machine)
            if more is None:
                return None
            fields.update(more)
    micro = fields.get("batch.micro_batch_size", job.batch.micro_batch_size)
    one_pass = micro * replicas
    if job.global_batch_size % one_pass:
        return None
    if job.batch.num_micro_batches is not None and job.num_micro_batches != job.global_batch_size // one_pass:
        fields["batch.num_micro_batches"] = job.global_batch_size // one_pass
    changed = with_fields(job, fields)
    if tensor > 1 and changed.processes_per_node % changed.parallelism.tensor_model_parallel_size:
        return None  # a group of them would span machines
    return changed, fields


def _more_gpus(job: JobSpec, factor: int, machine: int) -> dict[str, int] | None:
    """What takes `factor` times the GPUs: more of one machine as far as it goes, then whole ones. None where the spec
    leaves to the degrees how many there are, and one machine has too few.
    """
    nodes, gpus_per_node = job.launch.nodes, job.launch.gpus_per_node
    if nodes > 1:
        return {"launch.nodes": nodes * factor}
    gpus = job.world_size * factor
    if gpus_per_node is None:
        return {} if gpus <= machine else None
    if gpus <= machine:
        return {"launch.gpus_per_node": gpus}
    if gpus % machine:
        return {"launch.nodes": factor}
    return {"launch.gpus_per_node": machine, "launch.nodes": gpus // machine}
