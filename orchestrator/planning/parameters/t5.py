"""Exact parameter counts of a T5, per (tensor, pipeline) rank."""

from __future__ import annotations

from orchestrator.models.blocks.base import Degrees, norm_parameters
from orchestrator.models.blocks.grouped_query_attention.parameters import cross_matrices
from orchestrator.planning.parameters.counts import Parameters, ranks_of
from orchestrator.planning.parameters.gpt import embedding_parameters
from orchestrator.planning.parameters.layer import layer_parameters
from orchestrator.spec.encoder_decoder import HALVES, Half, layers_of, layers_of_stage, stages_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec


def parameters(job: JobSpec, padded_vocab: int) -> Parameters:
    """Count the parameters of an encoder and a decoder with a vocabulary of `padded_vocab` rows."""
    model, tp = job.model, job.parallelism.tensor_model_parallel_size
    embedding = embedding_parameters(model, padded_vocab, 1)
    output = padded_vocab * model.hidden_size if model.untie_embeddings_and_output_weights else 0
    output += padded_vocab if model.add_output_bias else 0
    halves = sum(
        layers_of(half, model) * _layer(half, model, 1) + _beside_the_layers(model, 1, is_end=True) for half in HALVES
    )
    return Parameters(
        total=embedding + halves + output,
        embedding=embedding,
        output=output,
        per_layer=_layer("decoder", model, 1),
        per_rank=ranks_of(stage_parameters(job, padded_vocab), tp),
    )


def stage_parameters(job: JobSpec, padded_vocab: int) -> tuple[int, ...]:
    """Parameters of any one tensor-parallel rank of each pipeline stage."""
    model, degrees = job.model, job.parallelism
    tp, pp = degrees.tensor_model_parallel_size, degrees.pipeline_model_parallel_size
    counts = [0] * pp
    counts[0] += embedding_parameters(model, padded_vocab, tp)
    for half in HALVES:
        stages = stages_of(half, degrees)
        for stage in stages:
            counts[stage] += layers_of_stage(half, stage, model, degrees) * _layer(half, model, tp)
            counts[stage] += _beside_the_layers(model, tp, is_end=stage == stages[-1])
    if model.untie_embeddings_and_output_weights or pp > 1:
        counts[-1] += padded_vocab // tp * model.hidden_size
    counts[-1] += padded_vocab // tp if model.add_output_bias else 0
    return tuple(counts)


def cross_attention_parameters(model: ModelSpec, tp: int) -> int:
    """Parameters of a decoder layer's attention to the encoder, with its norm, on each of `tp` ranks."""
    return sum(each.parameters(Degrees(tp)) for each in cross_matrices(model)) + norm_parameters(
        model, model.hidden_size
    )


def _layer(half: Half, model: ModelSpec, tp: int) -> int:
    return layer_parameters(model, Degrees(tp)) + (cross_attention_parameters(model, tp) if half == "decoder" else 0)


def _beside_the_layers(model: ModelSpec, tp: int, *, is_end: bool) -> int:
    """Of a half on a stage: the last norm, and the bias by distance, of which every stage has a copy."""
    bias = model.relative_attention_num_buckets * model.num_attention_heads // tp
    norm = norm_parameters(model, model.hidden_size) if is_end else 0
    return norm + (bias if model.position_embedding_type == "relative" else 0)
