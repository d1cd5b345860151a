"""Exact parameter counts of a GPT, per (tensor, pipeline) rank, as megatron-core builds it."""

from __future__ import annotations

from orchestrator.models.blocks.base import norm_parameters
from orchestrator.planning.parameters.counts import Parameters, ranks_of
from orchestrator.planning.parameters.experts import (
    expert_parameters,
    held_by_rank,
    layers_parameters,
    layers_with_experts,
)
from orchestrator.planning.parameters.vision import vision_parameters
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.model import ModelSpec


def parameters(job: JobSpec, padded_vocab: int) -> Parameters:
    """Count the parameters of a decoder with a vocabulary of `padded_vocab` rows."""
    model = job.model
    tp = job.parallelism.tensor_model_parallel_size
    tied = not model.untie_embeddings_and_output_weights or job.has_task
    stages = stage_parameters(job, padded_vocab)
    embedding = embedding_parameters(model, padded_vocab, 1)
    output = 0 if tied else padded_vocab * model.hidden_size
    expert, routed = expert_parameters(model, 1), sum(model.moe_layers)
    every, vision = model.expert_count * expert, vision_parameters(model, 1)
    layers = layers_parameters(model, model.num_layers, routed, 1, every)
    return Parameters(
        total=vision + embedding + layers + norm_parameters(model, model.hidden_size) + output,
        embedding=embedding,
        output=output,
        per_layer=layers_parameters(model, 1, 1 if routed else 0, 1, every),
        per_rank=ranks_of(stages, tp),
        inactive=routed * (every - model.moe_router_topk * expert),
        vision=vision,
    )


def stage_parameters(job: JobSpec, padded_vocab: int) -> tuple[int, ...]:
    """Parameters of any one tensor-parallel rank of each pipeline stage, all its model chunks together."""
    model, degrees = job.model, job.parallelism
    tp, pp = degrees.tensor_model_parallel_size, degrees.pipeline_model_parallel_size
    held = held_by_rank(model, degrees)
    in_stages = layers_of_chunks(model.num_layers, degrees)
    counts = [
        layers_parameters(model, sum(layers), sum(routed), tp, held)
        for layers, routed in zip(in_stages, layers_with_experts(job), strict=True)
    ]
    counts[0] += embedding_parameters(model, padded_vocab, tp) + vision_parameters(model, tp)
    counts[-1] += norm_parameters(model, model.hidden_size)
    if not job.has_task and (model.untie_embeddings_and_output_weights or pp > 1):
        counts[-1] += padded_vocab // tp * model.hidden_size
    return tuple(counts)


def embedding_parameters(model: ModelSpec, padded_vocab: int, tp: int) -> int:
    """Parameters of the tables of tokens and positions that each of `tp` ranks holds."""
    tokens = padded_vocab // tp * model.hidden_size
    if model.position_embedding_type == "learned_absolute":
        return tokens + model.positions * model.hidden_size
    return tokens
