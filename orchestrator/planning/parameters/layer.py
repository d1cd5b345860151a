"""Parameters of layers, as sums over their blocks."""

from __future__ import annotations

from functools import partial

from orchestrator.models.blocks.base import Degrees
from orchestrator.models.blocks.residual_stream import parameters as residual_stream
from orchestrator.models.layers import Layer, layers, matrices_of
from orchestrator.planning.layout.chunk_layers import in_stages
from orchestrator.planning.parameters.adapters import adapter_parameters, expert_adapter_parameters
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.parallelism import ParallelismSpec
from orchestrator.spec.model import ModelSpec


def degrees_of(degrees: ParallelismSpec) -> Degrees:
    """Over how many ranks a job's weights are split."""
    etp, ep = degrees.expert_tensor_parallel, degrees.expert_model_parallel_size
    return Degrees(degrees.tensor_model_parallel_size, etp, ep)


def layer_parameters(model: ModelSpec, degrees: Degrees, layer: Layer | None = None) -> int:
    """Parameters of a layer that each rank holds, with the norms around each block. The model's first by default."""
    layer = layer or layers(model)[0]
    matrices = sum(each.parameters(degrees) for each in matrices_of(model, layer))
    others = sum(block.parameters.other_parameters(model, degrees.tp) for block in layer)
    norms = residual_stream.parameters(model, len(layer))
    return matrices + others + norms + adapter_parameters(model, degrees, layer)


def expert_parameters(model: ModelSpec, degrees: Degrees, layer: Layer) -> int:
    """Those of experts among them, of which a token passes some."""
    matrices = sum(each.parameters(degrees) for each in matrices_of(model, layer) if each.routing is not None)
    return matrices + expert_adapter_parameters(model, degrees, layer)


def inactive_parameters(model: ModelSpec, layer: Layer) -> int:
    """Parameters of experts that a token does not pass."""
    routing = next((each.routing for each in matrices_of(model, layer) if each.routing is not None), None)
    if routing is None:
        return 0
    return expert_parameters(model, Degrees(), layer) // routing.experts * (routing.experts - routing.chosen)


def stage_expert_parameters(job: JobSpec) -> tuple[int, ...]:
    """Parameters of experts on any rank of each pipeline stage. Fewer ranks hold the same experts than hold the same
    other weights.
    """
    if not job.model.has_experts:
        return (0,) * job.parallelism.pipeline_model_parallel_size
    return tuple(in_stages(job, partial(expert_parameters, job.model, degrees_of(job.parallelism))))
