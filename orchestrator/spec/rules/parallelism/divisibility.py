"""How the model's sizes divide among ranks and heads."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.fields.paths import LENGTH, TP
from orchestrator.fields.refusals import Refusal, around, divisors_of, multiples_of, quotient
from orchestrator.spec.job_sections import JobSections

HEADS, GROUPS, HIDDEN = "model.num_attention_heads", "model.num_query_groups", "model.hidden_size"

_ROUND = 64
"""Tokens of which a sequence length that is meant is a multiple: then it is TP that is mistaken."""


def heads_by_tensor_parallel(job: JobSections) -> Iterator[Problem]:
    """Each tensor-parallel rank holds whole query heads."""
    yield from _by_tensor_parallel(job, "num_attention_heads", job.model.num_attention_heads, HEADS)


def query_groups_by_tensor_parallel(job: JobSections) -> Iterator[Problem]:
    """Each tensor-parallel rank holds whole key/value heads, or equally many ranks share each of them."""
    groups, tp = job.model.num_query_groups, job.parallelism.tensor_model_parallel_size
    if groups is not None and groups % tp and tp % groups:
        message = f"num_query_groups / TP or TP / num_query_groups must be whole: {quotient(groups, tp)}"
        offers = (around(TP, tp), around(GROUPS, groups))
        yield Refusal(message, (TP, GROUPS), offers=offers)


def ffn_by_tensor_parallel(job: JobSections) -> Iterator[Problem]:
    """Each tensor-parallel rank holds an equal part of the MLP."""
    model = job.model
    path = "model.ffn_hidden_size" if model.ffn_hidden_size is not None else HIDDEN
    yield from _by_tensor_parallel(job, "ffn_hidden_size", model.ffn_size, path)


def _by_tensor_parallel(job: JobSections, name: str, size: int, path: str) -> Iterator[Problem]:
    tp = job.parallelism.tensor_model_parallel_size
    if size % tp:
        message = f"{name} / TP must be whole: {quotient(size, tp)}"
        offers = (divisors_of(size, TP, tp), multiples_of(tp, f"model.{name}", size))
        yield Refusal(message, (TP, path), offers=offers)


def heads_by_query_groups(job: JobSections) -> Iterator[Problem]:
    """Each key/value head serves equally many query heads."""
    heads, groups = job.model.num_attention_heads, job.model.query_groups
    if heads % groups:
        message = f"num_attention_heads / num_query_groups must be whole: {quotient(heads, groups)}"
        offers = (divisors_of(heads, GROUPS, groups), multiples_of(groups, HEADS, heads))
        yield Refusal(message, (GROUPS, HEADS), offers=offers)


def hidden_by_heads(job: JobSections) -> Iterator[Problem]:
    """Heads share the hidden size, unless kv_channels says how wide they are."""
    model = job.model
    if model.kv_channels is None and model.hidden_size % model.num_attention_heads:
        hidden, heads = model.hidden_size, model.num_attention_heads
        message = f"hidden_size / num_attention_heads must be whole: {quotient(hidden, heads)}"
        offers = (divisors_of(hidden, HEADS, heads), multiples_of(heads, HIDDEN, hidden))
        yield Refusal(message, (HEADS, HIDDEN), "write kv_channels", offers=offers)


def sequence_by_tensor_parallel(job: JobSections) -> Iterator[Problem]:
    """Sequence parallelism gives each tensor-parallel rank an equal part of the sequence."""
    length, tp = job.model.seq_length, job.parallelism.tensor_model_parallel_size
    cp = job.parallelism.context_parallel_size
    if job.parallelism.uses_sequence_parallel and length % (tp * cp):
        per = "TP" if cp == 1 else "(TP · CP)"
        message = f"with sequence parallelism seq_length / {per} must be whole: {quotient(length, tp * cp)}"
        by_length = multiples_of(tp * cp, LENGTH, length)
        is_meant = length % (_ROUND * cp) == 0
        offers = (divisors_of(length // cp, TP, tp) if is_meant else by_length,)
        yield Refusal(message, (LENGTH, TP, "parallelism.sequence_parallel"), offers=offers)


RULES = (
    heads_by_tensor_parallel,
    query_groups_by_tensor_parallel,
    ffn_by_tensor_parallel,
    heads_by_query_groups,
    hidden_by_heads,
    sequence_by_tensor_parallel,
)
