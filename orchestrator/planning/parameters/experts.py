"""Parameters of mixture-of-experts layers."""

from __future__ import annotations

from orchestrator.planning.layout.topology import layers_of_stages
from orchestrator.planning.parameters.layer import layer_parameters, mlp_parameters
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.parallelism import ParallelismSpec
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.model import ModelSpec


def expert_parameters(model: ModelSpec, etp: int) -> int:
    """Parameters of one expert that each of `etp` ranks holds; 0 in a model without experts."""
    return mlp_parameters(model, model.moe_ffn_size, etp) if model.has_experts else 0


def routing_parameters(model: ModelSpec, tp: int) -> int:
    """Parameters of a layer's router and of what every token passes beside its experts, on each of `tp` ranks."""
    if not model.has_experts:
        return 0
    router = model.expert_count * (model.hidden_size + (1 if model.add_bias_linear else 0))
    return router + mlp_parameters(model, model.shared_expert_size, tp)


def layers_parameters(model: ModelSpec, layers: int, routed: int, tp: int, held: int) -> int:
    """Parameters of `layers` transformer layers on a rank, of which `routed` have experts. `held`: those of the experts
    of one layer.
    """
    dense = layer_parameters(model, tp)
    with_experts = dense - mlp_parameters(model, model.ffn_size, tp) + routing_parameters(model, tp) + held
    return (layers - routed) * dense + routed * with_experts


def held_by_rank(model: ModelSpec, degrees: ParallelismSpec) -> int:
    """Parameters of the experts of one layer that each rank holds."""
    mine = model.expert_count // degrees.expert_model_parallel_size
    return mine * expert_parameters(model, degrees.expert_tensor_parallel)


def layers_with_experts(job: JobSpec) -> tuple[tuple[int, ...], ...]:
    """[stage][chunk]: how many layers of each model chunk have experts."""
    model, degrees = job.model, job.parallelism
    if not model.has_experts:
        return ((0,) * degrees.num_model_chunks,) * degrees.pipeline_model_parallel_size
    if model.moe_layer_freq == 1:
        return layers_of_chunks(model.num_layers, degrees)
    has = model.moe_layers
    return tuple(
        tuple(sum(has[chunk.first : chunk.last + 1]) for chunk in chunks) for chunks in layers_of_stages(model, degrees)
    )


def stage_expert_parameters(job: JobSpec) -> tuple[int, ...]:
    """Parameters of experts on any rank of each pipeline stage. Fewer ranks hold the same experts than hold the same
    other weights.
    """
    held = held_by_rank(job.model, job.parallelism)
    return tuple(sum(chunks) * held for chunks in layers_with_experts(job))
