"""Exact parameter counts of a GPT, per (tensor, pipeline) rank, as megatron-core builds it."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec


@dataclass(frozen=True)
class RankParameters:
    """What one (tensor, pipeline) rank holds."""

    tp: int
    pp: int
    parameters: int


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a job."""

    total: int
    """Unique parameters of the model, vocabulary padding included."""
    embedding: int
    """Of these: token and position tables."""
    output: int
    """Of these: the output layer; 0 when it is tied to the embedding."""
    per_layer: int
    """Of these: one transformer layer."""
    per_rank: tuple[RankParameters, ...]
    """Every (tensor, pipeline) rank. Norms, positions and output biases are replicated over tensor ranks; a tied output
    layer on another stage than the embedding holds a copy of it. Both are counted where they are held."""

    @property
    def largest_rank(self) -> int:
        """Parameters of the fullest rank."""
        return max(rank.parameters for rank in self.per_rank)


def parameters(job: JobSpec, padded_vocab: int) -> Parameters:
    """Count the parameters of a job's model with a vocabulary of `padded_vocab` rows."""
    model = job.model
    tp = job.parallelism.tensor_model_parallel_size
    tied = not model.untie_embeddings_and_output_weights
    stages = stage_parameters(job, padded_vocab)
    embedding = _embedding(model, padded_vocab, 1)
    output = 0 if tied else padded_vocab * model.hidden_size
    return Parameters(
        total=embedding + model.num_layers * layer_parameters(model, 1) + _norm(model, model.hidden_size) + output,
        embedding=embedding,
        output=output,
        per_layer=layer_parameters(model, 1),
        per_rank=tuple(
            RankParameters(tp_rank, stage, count) for stage, count in enumerate(stages) for tp_rank in range(tp)
        ),
    )


def stage_parameters(job: JobSpec, padded_vocab: int) -> tuple[int, ...]:
    """Parameters of any one tensor-parallel rank of each pipeline stage, all its model chunks together."""
    model, tp = job.model, job.parallelism.tensor_model_parallel_size
    pp = job.parallelism.pipeline_model_parallel_size
    counts = [model.num_layers // pp * layer_parameters(model, tp)] * pp
    counts[0] += _embedding(model, padded_vocab, tp)
    counts[-1] += _norm(model, model.hidden_size)
    if model.untie_embeddings_and_output_weights or pp > 1:
        counts[-1] += padded_vocab // tp * model.hidden_size
    return tuple(counts)


def layer_parameters(model: ModelSpec, tp: int) -> int:
    """Parameters of one transformer layer that each of `tp` tensor-parallel ranks holds."""
    h = model.hidden_size
    query = model.num_attention_heads * model.head_dim
    qkv = (query + 2 * model.query_groups * model.head_dim) // tp
    up = model.ffn_size * (2 if model.activation == "swiglu" else 1) // tp
    weights = qkv * h + h * query // tp + up * h + h * model.ffn_size // tp
    biases = qkv if model.has_qkv_bias else 0
    if model.add_bias_linear:
        biases += h + up + h
    norms = 2 * _norm(model, h)
    if model.qk_layernorm:
        norms += 2 * _norm(model, model.head_dim)
    return weights + biases + norms


def _norm(model: ModelSpec, width: int) -> int:
    return width if model.normalization == "RMSNorm" else 2 * width


def _embedding(model: ModelSpec, padded_vocab: int, tp: int) -> int:
    tokens = padded_vocab // tp * model.hidden_size
    if model.position_embedding_type == "learned_absolute":
        return tokens + model.positions * model.hidden_size
    return tokens
