"""How the model's sizes divide among ranks and heads."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.spec.rules.base import (
    Unavailable,
    nearest,
    nearest_divisors,
    nearest_multiples,
    nearest_of,
    quotient,
)
from orchestrator.spec.rules.topology import TP
from orchestrator.spec.sections import JobSections

HEADS, GROUPS, HIDDEN = "model.num_attention_heads", "model.num_query_groups", "model.hidden_size"


def heads_by_tensor_parallel(job: JobSections) -> Iterator[Problem]:
    """Each tensor-parallel rank holds whole query heads."""
    yield from _by_tensor_parallel(job, "num_attention_heads", job.model.num_attention_heads, HEADS)


def query_groups_by_tensor_parallel(job: JobSections) -> Iterator[Problem]:
    """Each tensor-parallel rank holds whole key/value heads, or equally many ranks share each of them."""
    groups, tp = job.model.num_query_groups, job.parallelism.tensor_model_parallel_size
    if groups is not None and groups % tp and tp % groups:
        message = f"num_query_groups / TP or TP / num_query_groups must be whole: {quotient(groups, tp)}"
        yield Problem(message, (TP, GROUPS), _hint(job, "num_query_groups", groups))


def ffn_by_tensor_parallel(job: JobSections) -> Iterator[Problem]:
    """Each tensor-parallel rank holds an equal part of the MLP."""
    model = job.model
    path = "model.ffn_hidden_size" if model.ffn_hidden_size is not None else HIDDEN
    yield from _by_tensor_parallel(job, "ffn_hidden_size", model.ffn_size, path)


def _by_tensor_parallel(job: JobSections, name: str, size: int, path: str) -> Iterator[Problem]:
    tp = job.parallelism.tensor_model_parallel_size
    if size % tp:
        message = f"{name} / TP must be whole: {quotient(size, tp)}"
        yield Problem(message, (TP, path), _hint(job, name, size))


def _hint(job: JobSections, name: str, size: int) -> str | None:
    """The nearest TP and the nearest sizes of that name that none of these rules refuses."""

    def as_degree(value: int) -> bool:
        return _divides(job, value, {})

    def as_size(value: int) -> bool:
        return _divides(job, tp, {name: value})

    tp = job.parallelism.tensor_model_parallel_size
    try:
        degrees = nearest(tp, 2 * max(tp, job.model.num_attention_heads), as_degree)
        found = {"TP": degrees, name: nearest(size, 2 * max(size, tp), as_size)}
    except Unavailable:  # another size is wrong or not known, which has its own problem
        return f"nearest TP: {nearest_divisors(size, tp)}"
    return "; ".join(f"nearest {name}: {legal}" for name, legal in found.items() if legal) or None


def _divides(job: JobSections, tp: int, written: dict[str, int]) -> bool:
    """Whether every size divides by a TP; or those that are written anew do, and go with the other sizes."""
    model = job.model
    heads = written.get("num_attention_heads", model.num_attention_heads)
    groups = written.get("num_query_groups", heads if model.num_query_groups is None else model.num_query_groups)
    ffn = written.get("ffn_hidden_size", model.ffn_size)
    by_degree = {
        "num_attention_heads": heads % tp == 0,
        "num_query_groups": groups % tp == 0 or tp % groups == 0,
        "ffn_hidden_size": ffn % tp == 0,
    }
    if not written:
        return all(by_degree.values())
    shared = heads % groups == 0 and (model.kv_channels is not None or model.hidden_size % heads == 0)
    return all(by_degree[name] and (shared or name == "ffn_hidden_size") for name in written)


def heads_by_query_groups(job: JobSections) -> Iterator[Problem]:
    """Each key/value head serves equally many query heads."""
    heads, groups = job.model.num_attention_heads, job.model.query_groups
    if heads % groups:
        message = f"num_attention_heads / num_query_groups must be whole: {quotient(heads, groups)}"

        def goes(value: int) -> bool:
            tp = job.parallelism.tensor_model_parallel_size
            return heads % value == 0 and (value % tp == 0 or tp % value == 0)

        legal = nearest_of(groups, heads, goes, nearest_divisors(heads, groups))
        yield Problem(message, (GROUPS, HEADS), f"nearest num_query_groups: {legal}")


def hidden_by_heads(job: JobSections) -> Iterator[Problem]:
    """Heads share the hidden size, unless kv_channels says how wide they are."""
    model = job.model
    if model.kv_channels is None and model.hidden_size % model.num_attention_heads:
        hidden, heads = model.hidden_size, model.num_attention_heads

        def goes(value: int) -> bool:
            return hidden % value == 0 and _divides(
                job, job.parallelism.tensor_model_parallel_size, {"num_attention_heads": value}
            )

        hint = (
            f"nearest num_attention_heads: {nearest_of(heads, hidden, goes, nearest_divisors(hidden, heads))}; "
            f"nearest hidden_size: {nearest_multiples(heads, hidden)}; or write kv_channels"
        )
        message = f"hidden_size / num_attention_heads must be whole: {quotient(hidden, heads)}"
        yield Problem(message, (HEADS, HIDDEN), hint)


def sequence_by_tensor_parallel(job: JobSections) -> Iterator[Problem]:
    """Sequence parallelism gives each tensor-parallel rank an equal part of the sequence."""
    length, tp = job.model.seq_length, job.parallelism.tensor_model_parallel_size
    cp = job.parallelism.context_parallel_size
    if job.parallelism.uses_sequence_parallel and length % (tp * cp):
        per = "TP" if cp == 1 else "(TP · CP)"
        message = f"with sequence parallelism seq_length / {per} must be whole: {quotient(length, tp * cp)}"
        hint = f"nearest seq_length: {nearest_multiples(tp * cp, length)}"
        yield Problem(message, ("model.seq_length", TP, "parallelism.sequence_parallel"), hint)


RULES = (
    heads_by_tensor_parallel,
    query_groups_by_tensor_parallel,
    ffn_by_tensor_parallel,
    heads_by_query_groups,
    hidden_by_heads,
    sequence_by_tensor_parallel,
)
