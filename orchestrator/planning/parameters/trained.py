"""Of a job's parameters those that are trained."""

from __future__ import annotations

from orchestrator.planning.parameters.adapters import adapter_parameters
from orchestrator.planning.parameters.vision import encoder_parameters
from orchestrator.spec.job import JobSpec
from orchestrator.spec.stages import layers_of_chunks


def trained_parameters(job: JobSpec, held: tuple[int, ...]) -> tuple[int, ...]:
    """Of the parameters that a rank of each stage holds, those that are trained: all, all but a frozen encoder of
    images, or only the adapters.
    """
    model, tp = job.model, job.parallelism.tensor_model_parallel_size
    if model.lora is not None:
        adapters = adapter_parameters(model, tp)
        return tuple(sum(chunks) * adapters for chunks in layers_of_chunks(model.num_layers, job.parallelism))
    if model.vision is not None and model.vision.freeze:
        return (held[0] - encoder_parameters(model.vision, tp), *held[1:])
    return held


def trained_in_all(job: JobSpec, parameters: int) -> int:
    """The same of a model's `parameters`."""
    model = job.model
    if model.lora is not None:
        return model.num_layers * adapter_parameters(model, 1)
    frozen = 0 if model.vision is None or not model.vision.freeze else encoder_parameters(model.vision, 1)
    return parameters - frozen
