"""Fully sharded data parallelism: what rules it out."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.fields.paths import PP
from orchestrator.fields.refusals import Refusal, divisors_of
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.base import Rule, replicas

FSDP = "parallelism.fsdp"


def obstacles(job: JobSections) -> Iterator[tuple[str, str]]:
    """Fields that rule it out, each with the reason."""
    model, runtime, degrees = job.model, job.runtime, job.parallelism
    if degrees.pipeline_model_parallel_size > 1:
        yield PP, "each stage would gather its weights again for every micro-batch of a pipeline that has many"
    if model.family.is_encoder_decoder:
        yield "model.architecture", "it was not tried with an encoder and a decoder"
    if not degrees.use_distributed_optimizer:
        yield "parallelism.use_distributed_optimizer", "FSDP shards the optimizer's state too"
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


def sharding_groups(job: JobSections) -> Iterator[Problem]:
    """Hybrid sharding has groups of equal size, of more than one rank."""
    size = job.parallelism.fsdp
    if size is None or size == "full":
        return
    ranks = replicas(job) * job.parallelism.context_parallel_size
    if size == 1 or ranks % size:
        message = f"the size of a sharding group must divide DP · CP: {ranks} / {size} is not whole"
        numbers: tuple[int, ...] = ranks, size
        if size == 1:
            message, numbers = "a group of one rank shards nothing", (size,)
        yield Refusal(
            message, (FSDP,), "write full, or leave it out", numbers=numbers, offers=(divisors_of(ranks, FSDP, size),)
        )
    elif job.model.has_experts and job.expert_replicas % job.sharded_copies:
        copies, groups = job.expert_replicas, job.sharded_copies
        message = (
            "sharding groups must have the same number of copies of all experts, DP · CP · TP / (ETP · EP): "
            f"{copies} / {groups} groups is not whole"
        )
        yield Problem(message, (FSDP, "parallelism.expert_model_parallel_size"), "write full, or larger groups")


def fully_sharded(job: JobSections) -> Iterator[Problem]:
    """What is asked for is had, or refused."""
    if job.parallelism.fsdp is not None:
        for field, reason in obstacles(job):
            yield Problem(f"FSDP is not possible: {reason}", (FSDP, field), "leave it out")


RULES: tuple[Rule, ...] = (sharding_groups, fully_sharded)
