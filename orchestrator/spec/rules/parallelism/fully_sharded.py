"""Fully sharded data parallelism: what rules it out."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.fields.paths import PP
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.base import Rule

FSDP = "parallelism.fsdp"


def obstacles(job: JobSections) -> Iterator[tuple[str, str]]:
    """Fields that rule it out, each with the reason."""
    model, runtime, degrees = job.model, job.runtime, job.parallelism
    if degrees.pipeline_model_parallel_size > 1:
        yield PP, "each stage would gather its weights again for every micro-batch of a pipeline that has many"
    if model.family.is_encoder_decoder:
        yield "model.architecture", "it was not tried with an encoder and a decoder"
    if not degrees.use_distributed_optimizer:
        yield "parallelism.use_distributed_optimizer", "who shards the weights shards the optimizer's state too"
    if job.optimizer.offload_fraction > 0:
        yield "optimizer.offload_fraction", "its state follows whole weights"
    if model.has_adapters:
        yield "model.lora", "weights that are not trained are not sharded"
    if model.has_vision:
        yield "model.vision", "it was not tried with an encoder of images"
    if (narrow := job.precision.quantization) is not None:
        yield f"precision.{narrow.field}", f"the layers' {narrow.number_format.upper()} copies of weights stay whole"
    if runtime.cpu_offloading_num_layers is not None:
        yield "runtime.cpu_offloading_num_layers", "copies of activations to host memory were not tried with it"
    if job.checkpoint.upcycle:
        yield "checkpoint.upcycle", "experts begin with whole weights of a dense model"


def fully_sharded(job: JobSections) -> Iterator[Problem]:
    """What is asked for is had, or refused."""
    if job.parallelism.fsdp is not None:
        for field, reason in obstacles(job):
            yield Problem(f"FSDP is not possible: {reason}", (FSDP, field), "leave it out")


RULES: tuple[Rule, ...] = (fully_sharded,)
