"""Of a job's parameters those that are trained."""

from __future__ import annotations

from functools import partial

from orchestrator.models.blocks.base import Degrees
from orchestrator.models.layers import layers
from orchestrator.planning.layout.chunk_layers import in_stages
from orchestrator.planning.parameters.adapters import adapter_parameters, expert_adapter_parameters
from orchestrator.planning.parameters.layer import degrees_of
from orchestrator.planning.parameters.vision import encoder_parameters
from orchestrator.spec.job import JobSpec


def trained_parameters(job: JobSpec, held: tuple[int, ...]) -> tuple[int, ...]:
    """Of the parameters that a rank of each stage holds, those that are trained: all, all but a frozen encoder of
    images, or only the adapters.
    """
    model, degrees = job.model, job.parallelism
    if model.has_adapters:
        return tuple(in_stages(job, partial(adapter_parameters, model, degrees_of(degrees))))
    if model.has_frozen_encoder:
        frozen = encoder_parameters(model.image_encoder, degrees.tensor_model_parallel_size)
        return (held[0] - frozen, *held[1:])
    return held


def trained_expert_parameters(job: JobSpec, held: tuple[int, ...]) -> tuple[int, ...]:
    """The same of those of experts."""
    if job.model.has_adapters:
        return tuple(in_stages(job, partial(expert_adapter_parameters, job.model, degrees_of(job.parallelism))))
    return held


def trained_in_all(job: JobSpec, parameters: int) -> int:
    """The same of a model's `parameters`."""
    model = job.model
    if model.has_adapters:
        return sum(adapter_parameters(model, Degrees(), layer) for layer in layers(model))
    frozen = encoder_parameters(model.image_encoder, 1) if model.has_frozen_encoder else 0
    return parameters - frozen
