"""Exact parameter counts of a hybrid of state space layers, attention and MLPs, per (tensor, pipeline) rank."""

from __future__ import annotations

from orchestrator.models.blocks.base import norm_parameters
from orchestrator.models.blocks.state_space import matrices as state_space
from orchestrator.planning.layout.topology import layers_of_stages
from orchestrator.planning.parameters.counts import Parameters, ranks_of
from orchestrator.planning.parameters.gpt import embedding_parameters
from orchestrator.planning.parameters.layer import attention_parameters, mlp_parameters
from orchestrator.spec.hybrid import ATTENTION, STATE_SPACE, layer_pattern
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec


def parameters(job: JobSpec, padded_vocab: int) -> Parameters:
    """Count the parameters of a hybrid with a vocabulary of `padded_vocab` rows."""
    model, tp = job.model, job.parallelism.tensor_model_parallel_size
    embedding = embedding_parameters(model, padded_vocab, 1)
    output = padded_vocab * model.hidden_size if model.untie_embeddings_and_output_weights else 0
    layers = _layers(model, layer_pattern(model), 1)
    return Parameters(
        total=embedding + layers + norm_parameters(model, model.hidden_size) + output,
        embedding=embedding,
        output=output,
        per_layer=layers // model.num_layers,
        per_rank=ranks_of(stage_parameters(job, padded_vocab), tp),
    )


def stage_parameters(job: JobSpec, padded_vocab: int) -> tuple[int, ...]:
    """Parameters of any one tensor-parallel rank of each pipeline stage, all its model chunks together."""
    model, degrees = job.model, job.parallelism
    tp, pattern = degrees.tensor_model_parallel_size, layer_pattern(model)
    counts = [
        sum(_layers(model, pattern[chunk.first : chunk.last + 1], tp) for chunk in chunks)
        for chunks in layers_of_stages(model, degrees)
    ]
    counts[0] += embedding_parameters(model, padded_vocab, tp)
    counts[-1] += norm_parameters(model, model.hidden_size)
    if model.untie_embeddings_and_output_weights or len(counts) > 1:
        counts[-1] += padded_vocab // tp * model.hidden_size
    return tuple(counts)


def _layers(model: ModelSpec, pattern: str, tp: int) -> int:
    return sum(_layer(model, kind, tp) for kind in pattern)


def _layer(model: ModelSpec, kind: str, tp: int) -> int:
    """One layer with the norm before it."""
    norm = norm_parameters(model, model.hidden_size)
    if kind == STATE_SPACE:
        matrices = sum(each.parameters(tp) for each in state_space.matrices(model))
        return norm + matrices + state_space.other_parameters(model, tp)
    if kind == ATTENTION:
        return norm + attention_parameters(model, tp)
    return norm + mlp_parameters(model, model.ffn_size, tp)
