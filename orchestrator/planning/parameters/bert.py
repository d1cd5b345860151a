"""Exact parameter counts of a BERT, per (tensor, pipeline) rank, as megatron-core builds it."""

from __future__ import annotations

from orchestrator.models.blocks.base import norm_parameters
from orchestrator.planning.parameters import gpt
from orchestrator.planning.parameters.counts import Parameters, ranks_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.model import ModelSpec


def parameters(job: JobSpec, padded_vocab: int) -> Parameters:
    """Count the parameters of an encoder with a vocabulary of `padded_vocab` rows."""
    tp = job.parallelism.tensor_model_parallel_size
    counted, types, heads = gpt.parameters(job, padded_vocab), _types(job.model), _heads(job, padded_vocab)
    return counted._replace(
        total=counted.total + types + heads,
        embedding=counted.embedding + types,
        output=counted.output + heads,
        per_rank=ranks_of(stage_parameters(job, padded_vocab), tp),
    )


def stage_parameters(job: JobSpec, padded_vocab: int) -> tuple[int, ...]:
    """Parameters of any one tensor-parallel rank of each pipeline stage, all its model chunks together. Where the
    embeddings have a norm, it is that of the last layer's output if norms stand behind their branches, and else that
    before the first attention.
    """
    model, counts = job.model, list(gpt.stage_parameters(job, padded_vocab))
    counts[0] += _types(model)
    counts[-1] += _heads(job, padded_vocab // job.parallelism.tensor_model_parallel_size)
    if model.normalizes_embeddings:
        norm = norm_parameters(model, model.hidden_size)
        counts[0] += norm
        counts[_stage_of_first_layer(job) if model.embedding_norm else -1] -= norm
    return tuple(counts)


def _stage_of_first_layer(job: JobSpec) -> int:
    """Not always the embeddings' stage."""
    by_chunk = zip(*layers_of_chunks(job.model.num_layers, job.parallelism), strict=True)
    return next(stage for chunk in by_chunk for stage, count in enumerate(chunk) if count)


def _types(model: ModelSpec) -> int:
    return model.tokentypes * model.hidden_size


def _heads(job: JobSpec, vocab: int) -> int:
    """What predicts from the last layer, beside the matrix of the output layer: a dense layer, a norm and a bias for
    the masked tokens; a pooler and two classes for the binary head. For a task a pooler and the task's scores alone."""
    model, h = job.model, job.model.hidden_size
    pooler = h * h + h
    if job.has_task:
        return pooler + job.labelled_task.head_size * (h + 1)
    dense = pooler if model.bert_head_bias else h * h
    binary = pooler + 2 * h + 2 if model.bert_binary_head else 0
    return dense + norm_parameters(model, h) + vocab + binary
