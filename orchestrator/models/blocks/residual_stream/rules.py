"""Which models have their norms elsewhere than before attention and MLP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.errors import Problem

if TYPE_CHECKING:
    from orchestrator.models.blocks.job_fields import Job
    from orchestrator.models.blocks.model_fields import Fields
    from orchestrator.models.blocks.protocols import Rule, RulesByTopic

NORMS, FAMILY = "model.transformer_block_type", "model.architecture"


def output_norms(job: Job[Fields]) -> Iterator[Problem]:
    """Norms of what attention and MLP give are for decoders whose layers have both."""
    model = job.model
    if model.normalizes_outputs and "output_norms" not in model.family.supports:
        message = f"{model.transformer_block_type} is for architecture: gpt, but architecture is {model.family.name}"
        yield Problem(message, (NORMS, FAMILY), "leave it out")


TENSOR_PARALLEL: tuple[Rule, ...] = ()
RULES: RulesByTopic = {"variants": (output_norms,)}
