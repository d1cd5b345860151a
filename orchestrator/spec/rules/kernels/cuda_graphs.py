"""Passes over a micro-batch as one CUDA graph: what rules it out."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.models.blocks.registry import ruled_out
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.rules.base import Rule

GRAPHS = "runtime.cuda_graphs"
_DEGREES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)


def obstacles(job: JobSections) -> Iterator[tuple[str, str]]:
    """Fields that rule it out, each with the reason."""
    model, runtime, degrees = job.model, job.runtime, job.parallelism
    if runtime.device == "cpu":
        yield "runtime.device", "graphs are of GPUs"
    for name in _DEGREES:
        if getattr(degrees, name) > 1:
            yield f"parallelism.{name}", "communication between ranks within a pass cannot be captured"
    if job.is_fully_sharded:
        yield "parallelism.fsdp", "weights are gathered within each pass, which cannot be captured"
    yield from ruled_out(job, "cuda_graphs")
    narrow = job.precision.quantization
    if narrow is not None and narrow.is_microscaled:
        yield f"precision.{narrow.field}", f"it was not tried in {narrow.number_format.upper()}"
    recipe = None if job.precision.fp8 is None else job.precision.fp8.recipe
    if recipe == "delayed" and job.data_parallel_size > 1:
        yield "precision.fp8.recipe", "with delayed scaling, replicas exchange largest values within each pass"
    if recipe not in (None, "delayed") and runtime.recompute_granularity == "full":
        yield "precision.fp8.recipe", "recomputed layers read the FP8 weights that belong to a graph"
    if runtime.train_step is not None:
        yield "runtime.train_step", "host code of a custom step would run only once"
    if runtime.recompute_granularity is not None and _drops(model):
        yield "runtime.recompute_granularity", "recomputation would drop other elements than before"
    if runtime.cpu_offloading_num_layers is not None:
        yield "runtime.cpu_offloading_num_layers", "copies to host memory cannot be captured"


def _drops(model: ModelSpec) -> bool:
    of_adapters = model.adapters.lora_dropout if model.has_adapters else 0.0
    return max(model.hidden_dropout, model.attention_dropout, of_adapters) > 0


def cuda_graphs(job: JobSections) -> Iterator[Problem]:
    """Passes that are to be a CUDA graph are one, or refused."""
    if job.runtime.cuda_graphs:
        for field, reason in obstacles(job):
            yield Problem(f"CUDA graphs are not possible: {reason}", (GRAPHS, field), "leave it out")


RULES: tuple[Rule, ...] = (cuda_graphs,)
