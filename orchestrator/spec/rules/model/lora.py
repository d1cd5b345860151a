"""What low-rank adapters go with."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.models.blocks.registry import FEATURES
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.layout.stages import layers_of_chunks

LORA = "model.lora"


def adapted_model(job: JobSections) -> Iterator[Problem]:
    """Adapters are for decoders."""
    model = job.model
    if not model.has_adapters:
        return
    if not FEATURES["adapters"].goes_with(model.family):
        yield Problem("adapters are for architecture gpt only", (LORA, "model.architecture"), "leave it out")


def adapters_narrower_than_layers(job: JobSections) -> Iterator[Problem]:
    """An adapter is narrower than what it stands beside."""
    model = job.model
    if model.has_adapters and model.adapters.rank > model.hidden_size:
        message = f"rank {model.adapters.rank} > hidden_size {model.hidden_size}: the adapters would have full rank"
        yield Problem(message, (f"{LORA}.rank", "model.hidden_size"), "8 to 64 are usual")


def each_adapter_once(job: JobSections) -> Iterator[Problem]:
    """A matrix has one adapter."""
    if not job.model.has_adapters:
        return
    modules = job.model.adapters.target_modules
    if len(set(modules)) < len(modules):
        yield Problem("names a module twice", (f"{LORA}.target_modules",), "name each once")


def adapted_weights(job: JobSections) -> Iterator[Problem]:
    """Adapters beside initial weights learn nothing of use; for a benchmark on random tokens they will do."""
    if job.model.has_adapters and job.checkpoint.pretrained is None and not job.data.random_tokens:
        message = "adapters need weights to adapt, but there is no checkpoint.pretrained"
        yield Problem(message, (LORA, "checkpoint.pretrained"), "write checkpoint.pretrained: RUN")


def adapted_layers(job: JobSections) -> Iterator[Problem]:
    """Transformer Engine's layers fuse a norm with the matrix behind it: nothing can stand beside that alone."""
    if job.model.has_adapters and job.runtime.layers == "transformer_engine":
        message = "Transformer Engine's layers do not support adapters"
        yield Problem(message, ("runtime.layers", LORA), "write torch or auto")


def something_to_train(job: JobSections) -> Iterator[Problem]:
    """Every chunk of every stage has layers, since adapters stand beside nothing else."""
    if not job.model.has_adapters:
        return
    if not all(held for stage in layers_of_chunks(job.model.num_layers, job.parallelism) for held in stage):
        message = "a stage without layers has no adapters, and nothing to train"
        yield Problem(message, (LORA, "parallelism.pipeline_model_parallel_size"), "fewer stages, or layers in each")


RULES = (
    something_to_train,
    adapted_model,
    adapters_narrower_than_layers,
    each_adapter_once,
    adapted_weights,
    adapted_layers,
)
