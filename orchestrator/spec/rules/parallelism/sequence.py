"""How the sequence divides among ranks."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.fields.paths import LENGTH, TP
from orchestrator.fields.refusals import Refusal, divisors_of, multiples_of, quotient
from orchestrator.spec.job_sections import JobSections

_ROUND = 64
"""Tokens of which a sequence length that is meant is a multiple: then it is TP that is mistaken."""


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
        yield Refusal(message, (LENGTH, TP, "parallelism.sequence_parallel"), numbers=(length, tp, cp), offers=offers)


RULES = (sequence_by_tensor_parallel,)
