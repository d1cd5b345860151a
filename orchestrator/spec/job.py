"""The job spec."""

from __future__ import annotations

from pydantic import ConfigDict, ValidationInfo, model_validator

from orchestrator.errors import SpecError
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules import check
from orchestrator.spec.schema.canonical import config_hash

STORED = "stored"
"""In a validation context: the spec was checked when it was stored."""


class JobSpec(JobSections):
    """One training job: complete, frozen and serialisable. Raises SpecError when its fields contradict each other."""

    model_config = ConfigDict(defer_build=False)

    @property
    def config_hash(self) -> str:
        """SHA-256 of the canonical JSON of the spec, hex. The same spec gives the same hash on every machine."""
        return config_hash(self.model_dump(mode="json"))

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> JobSpec:
        if not (info.context and info.context.get(STORED)):
            problems = check(self)
            if problems:
                raise SpecError(problems=problems)
        return self
