"""What can be changed about a job so that a rank holds less, along several axes, and the job that comes of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from orchestrator.kernel_selection.tensor_overlap import overlaps_tensor_parallel
from orchestrator.planning.suggestions.changes import with_fields
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.sections.runtime import Layers

_FACTORS = (2, 4, 8)
_WITH_DEGREES = (
    "parallelism.tensor_model_parallel_size",
    "parallelism.pipeline_model_parallel_size",
    "parallelism.context_parallel_size",
    "parallelism.data_parallel_size",
    "batch.num_micro_batches",
    "launch.nodes",
    "launch.gpus_per_node",
)
"""What larger degrees and another micro-batch bring with them."""


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
    context: int = 1
    rounds: bool = False
    """Whether the training comes out otherwise, by its rounding; all else leaves it as it is."""


def axes_of(job: JobSpec, machine: int, layers: Layers) -> dict[str, list[Change]]:
    """What can be changed, mildest first along each axis."""
    degrees, micro = job.parallelism, job.batch.micro_batch_size
    tp, pp = degrees.tensor_model_parallel_size, degrees.pipeline_model_parallel_size
    axes: dict[str, list[Change]] = {}
    if job.weight_replicas > 1 and not degrees.use_distributed_optimizer:
        path = "parallelism.use_distributed_optimizer"
        axes["optimizer"] = [Change("optimizer", "the distributed optimizer", {path: True})]
    if job.weight_replicas > 1 and degrees.fsdp is None and pp == 1:
        axes["weights"] = [Change("weights", "FSDP", {"parallelism.fsdp": "full"})]
    if tp > 1 and not degrees.uses_sequence_parallel:
        axes["sequence"] = [Change("sequence", "sequence parallelism", {"parallelism.sequence_parallel": True})]
    if job.precision.grad_reduce_in_fp32 and job.precision.dtype != "fp32":
        name = job.precision.dtype
        fields = {"precision.grad_reduce_in_fp32": False}
        words = f"gradients summed in {name} (the training rounds otherwise)"
        axes["gradients"] = [Change("gradients", words, fields, rounds=True)]
    smaller = [size for size in range(micro - 1, 0, -1) if micro % size == 0]
    if smaller:
        words = f"instead of {micro}"
        axes["micro-batch"] = [
            Change("micro-batch", f"micro-batch {size} {words}", {"batch.micro_batch_size": size}) for size in smaller
        ]
    if not job.runtime.fused_linear_cross_entropy:
        fields = {"runtime.fused_linear_cross_entropy": True}
        axes["loss"] = [Change("loss", "the output layer and the loss joined", fields)]
    if overlaps_tensor_parallel(job, layers):
        fields = {"parallelism.tp_comm_overlap": False}
        axes["overlap"] = [Change("overlap", "tensor parallelism not overlapped", fields)]
    axes["recompute"] = _recomputation(job)
    if job.model.has_experts:
        # No GPUs are taken for it: the experts of ranks that are there are spread over them.
        path, ep = "parallelism.expert_model_parallel_size", degrees.expert_model_parallel_size
        axes["experts"] = [Change("experts", f"EP {ep * factor}", {path: ep * factor}) for factor in _FACTORS]
    if job.optimizer.kind.is_adam and degrees.use_distributed_optimizer:
        axes["host"] = [
            Change("host", f"{part} of the optimizer's state in host memory", {"optimizer.offload_fraction": fraction})
            for part, fraction in (("half", 0.5), ("all", 1.0))
            if fraction > job.optimizer.offload_fraction
        ]
    cp = degrees.context_parallel_size
    axes["context"] = [Change("context", f"CP {cp * factor}", {}, context=factor) for factor in _FACTORS]
    axes["tensor"] = [
        # Sequence parallelism comes with it: without, the ranks of a group hold much the same activations.
        Change("tensor", f"TP {tp * factor}", {"parallelism.sequence_parallel": True}, tensor=factor)
        for factor in _FACTORS
        if tp * factor <= machine
    ]
    axes["pipeline"] = [Change("pipeline", f"PP {pp * factor}", {}, pipeline=factor) for factor in _FACTORS]
    return {axis: changes for axis, changes in axes.items() if changes}


def _recomputation(job: JobSpec) -> list[Change]:
    runtime, degrees = job.runtime, job.parallelism
    if runtime.recompute_granularity == "full" and runtime.recompute_method == "uniform":
        return []
    layers = max(held for stage in layers_of_chunks(job.model.num_layers, degrees) for held in stage)
    path, part = "runtime.recompute_", "chunk" if degrees.num_model_chunks > 1 else "stage"
    full: dict[str, Any] = {f"{path}granularity": "full", f"{path}num_layers": 1}
    # What the spec rules out beside whole layers goes, where the job has it.
    if runtime.recompute_modules is not None:
        full[f"{path}modules"] = None
    if runtime.cpu_offloading_num_layers is not None:
        full["runtime.cpu_offloading_num_layers"] = None
    changes = [
        Change(
            "recompute",
            f"{count} layers of each {part} recomputed",
            {**full, f"{path}method": "block", f"{path}num_layers": count},
        )
        for count in sorted({layers // 4, layers // 2, 3 * layers // 4} - {0})
        if runtime.recompute_granularity != "full" or count > (runtime.recompute_num_layers or 1)
    ]
    return [*changes, Change("recompute", "all layers recomputed", {**full, f"{path}method": "uniform"})]


def fields_of(axes: Mapping[str, list[Change]]) -> dict[str, set[str]]:
    """All that differs in any job that comes of these, by section."""
    found: dict[str, set[str]] = {}
    for path in itertools.chain(_WITH_DEGREES, *(change.fields for changes in axes.values() for change in changes)):
        section, _, name = path.partition(".")
        found.setdefault(section, set()).add(name)
    return found


def apply(job: JobSpec, changes: tuple[Change, ...], machine: int) -> tuple[JobSpec, dict[str, Any]] | None:
    """The changed job, unchecked, and all fields that differ; None where the global batch could not stay."""
    fields: dict[str, Any] = {}
    for change in changes:
        fields.update(change.fields)
    degrees = job.parallelism
    tensor, pipeline = prod(change.tensor for change in changes), prod(change.pipeline for change in changes)
    context = prod(change.context for change in changes)
    growth, replicas = tensor * pipeline * context, job.data_parallel_size
    if growth > 1:
        if tensor > 1:
            fields["parallelism.tensor_model_parallel_size"] = degrees.tensor_model_parallel_size * tensor
        if pipeline > 1:
            fields["parallelism.pipeline_model_parallel_size"] = degrees.pipeline_model_parallel_size * pipeline
        if context > 1:
            fields["parallelism.context_parallel_size"] = degrees.context_parallel_size * context
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
