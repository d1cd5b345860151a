"""Exact parameter counts of a BERT, per (tensor, pipeline) rank, as megatron-core builds it."""

from __future__ import annotations

from orchestrator.models.blocks.base import norm_parameters
from orchestrator.planning.parameters import gpt
from orchestrator.planning.parameters.counts import Parameters, ranks_of
from orchestrator.spec.job import JobSpec
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
    """Parameters of any one tensor-parallel rank of each pipeline stage, all its model chunks together. The norm of the
    last layer's output is the embedding's where norms stand behind their branches.
    """
    counts = list(gpt.stage_parameters(job, padded_vocab))
    moved = norm_parameters(job.model, job.model.hidden_size) if job.model.transformer_block_type == "post_ln" else 0
    counts[0] += _types(job.model) + moved
    counts[-1] += _heads(job, padded_vocab // job.parallelism.tensor_model_parallel_size) - moved
    return tuple(counts)


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
