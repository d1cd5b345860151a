"""Which family's counts a job's parameters are."""

from __future__ import annotations

from typing import Final, Protocol

from orchestrator.models.registry import FamilyTable
from orchestrator.planning.parameters import bert, gpt, t5
from orchestrator.planning.parameters.counts import Parameters
from orchestrator.spec.job import JobSpec


class _Counting(Protocol):
    def parameters(self, job: JobSpec, padded_vocab: int) -> Parameters: ...

    def stage_parameters(self, job: JobSpec, padded_vocab: int) -> tuple[int, ...]: ...


_FAMILIES: Final = FamilyTable[_Counting](gpt=gpt, bert=bert, t5=t5, mamba=gpt)


def parameters(job: JobSpec, padded_vocab: int) -> Parameters:
    """Count the parameters of a job's model with a vocabulary of `padded_vocab` rows."""
    return _FAMILIES.of(job.model.family).parameters(job, padded_vocab)


def stage_parameters(job: JobSpec, padded_vocab: int) -> tuple[int, ...]:
    """Parameters of any one tensor-parallel rank of each pipeline stage, all its model chunks together."""
    return _FAMILIES.of(job.model.family).stage_parameters(job, padded_vocab)
