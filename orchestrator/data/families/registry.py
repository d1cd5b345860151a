"""Which data set a model's family trains on."""

from __future__ import annotations

from typing import Final

from orchestrator.data.families import bert, gpt, t5
from orchestrator.data.families.base import DatasetFamily
from orchestrator.models.registry import FamilyTable
from orchestrator.spec.model import ModelSpec

_FAMILIES: Final = FamilyTable[DatasetFamily](gpt=gpt, bert=bert, t5=t5, mamba=gpt)


def dataset_family(model: ModelSpec) -> DatasetFamily:
    """The data side of a model's family."""
    return _FAMILIES.of(model.family)
