"""Exact parameter counts of a decoder, per (tensor, pipeline) rank, as megatron-core builds it."""

from __future__ import annotations

from functools import partial

from orchestrator.models.blocks.base import Degrees, norm_parameters
from orchestrator.models.layers import layers, prediction_layers
from orchestrator.planning.layout.chunk_layers import in_stages, kinds_of
from orchestrator.planning.parameters.counts import Parameters, ranks_of
from orchestrator.planning.parameters.layer import degrees_of, expert_parameters, inactive_parameters, layer_parameters
from orchestrator.planning.parameters.vision import vision_parameters
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec


def parameters(job: JobSpec, padded_vocab: int) -> Parameters:
    """Count the parameters of a decoder with a vocabulary of `padded_vocab` rows."""
    model = job.model
    tp = job.parallelism.tensor_model_parallel_size
    tied = not model.untie_embeddings_and_output_weights or job.has_task
    stages = stage_parameters(job, padded_vocab)
    embedding = embedding_parameters(model, padded_vocab, 1)
    output = 0 if tied else padded_vocab * model.hidden_size
    every = (*layers(model), *prediction_layers(model))
    kinds, vision, whole = kinds_of(every), vision_parameters(model, 1), Degrees()
    of_layers = sum(count * layer_parameters(model, whole, layer) for layer, count in kinds)
    largest = max((layer for layer, _ in kinds), key=lambda layer: expert_parameters(model, whole, layer))
    return Parameters(
        total=vision + embedding + of_layers + norm_parameters(model, model.hidden_size) + output,
        embedding=embedding,
        output=output,
        per_layer=of_layers // model.num_layers if model.family.is_hybrid else layer_parameters(model, whole, largest),
        per_rank=ranks_of(stages, tp),
        inactive=sum(count * inactive_parameters(model, layer) for layer, count in kinds),
        vision=vision,
    )


def stage_parameters(job: JobSpec, padded_vocab: int) -> tuple[int, ...]:
    """Parameters of any one tensor-parallel rank of each pipeline stage, all its model chunks together."""
    model, degrees = job.model, job.parallelism
    tp, pp = degrees.tensor_model_parallel_size, degrees.pipeline_model_parallel_size
    counts = in_stages(job, partial(layer_parameters, model, degrees_of(degrees)))
    counts[0] += embedding_parameters(model, padded_vocab, tp) + vision_parameters(model, tp)
    counts[-1] += norm_parameters(model, model.hidden_size)
    predicts_further = bool(prediction_layers(model))
    if predicts_further and pp > 1:  # a copy of the embedding, which is the output layer too where they are tied
        counts[-1] += padded_vocab // tp * model.hidden_size
    if not job.has_task and (model.untie_embeddings_and_output_weights or (pp > 1 and not predicts_further)):
        counts[-1] += padded_vocab // tp * model.hidden_size
    return tuple(counts)


def embedding_parameters(model: ModelSpec, padded_vocab: int, tp: int) -> int:
    """Parameters of the tables of tokens and positions that each of `tp` ranks holds."""
    tokens = padded_vocab // tp * model.hidden_size
    if model.position_embedding_type == "learned_absolute":
        return tokens + model.positions * model.hidden_size
    return tokens
