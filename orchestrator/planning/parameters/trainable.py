"""Of a job's parameters those that are trained."""

from __future__ import annotations

from orchestrator.planning.parameters.adapters import adapter_parameters
from orchestrator.planning.parameters.vision import encoder_parameters
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.stages import layers_of_chunks


def trained_parameters(job: JobSpec, held: tuple[int, ...]) -> tuple[int, ...]:
    """Of the parameters that a rank of each stage holds, those that are trained: all, all but a frozen encoder of
    images, or only the adapters.
    """
    model, tp = job.model, job.parallelism.tensor_model_parallel_size
    if model.has_adapters:
        adapters = adapter_parameters(model, tp)
        return tuple(sum(chunks) * adapters for chunks in layers_of_chunks(model.num_layers, job.parallelism))
    if model.has_frozen_encoder:
        return (held[0] - encoder_parameters(model.image_encoder, tp), *held[1:])
    return held


def trained_in_all(job: JobSpec, parameters: int) -> int:
    """The same of a model's `parameters`."""
    model = job.model
    if model.has_adapters:
        return model.num_layers * adapter_parameters(model, 1)
    frozen = encoder_parameters(model.image_encoder, 1) if model.has_frozen_encoder else 0
    return parameters - frozen
