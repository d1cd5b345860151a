"""Which family a job's model is of."""

from __future__ import annotations

from typing import Final

from orchestrator.models.layers import prediction_layers
from orchestrator.models.registry import FamilyTable
from orchestrator.runtime.families import bert, gpt, mamba, multi_token_prediction, native_resolution, t5, vision
from orchestrator.runtime.families.base import Family
from orchestrator.spec.job import JobSpec

_FAMILIES: Final = FamilyTable[Family](gpt=gpt, bert=bert, t5=t5, mamba=mamba)


def family_of(job: JobSpec) -> Family:
    """The family of a job's model."""
    if job.model.has_vision:
        return native_resolution if job.model.image_encoder.kind.keeps_shape else vision
    return multi_token_prediction if prediction_layers(job.model) else _FAMILIES.of(job.model.family)
