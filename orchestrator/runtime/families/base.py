"""What a model family adds to the training program."""

from __future__ import annotations

from typing import Any, Protocol

from megatron.core.transformer.transformer_config import TransformerConfig

from orchestrator.planning.vocabulary import Vocabulary
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.runtime.steps.base import TrainStep
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers


class Family(Protocol):
    """A module of this package that has these two functions."""

    def build_chunk(
        self, job: JobSpec, config: TransformerConfig, layers: Layers, vocabulary: Vocabulary, ranks: Ranks, index: int
    ) -> Any:
        """Model chunk `index` of this rank, weights not filled."""
        ...

    def train_step(self, job: JobSpec) -> TrainStep:
        """What a step does with a micro-batch of this family's data."""
        ...


def virtual_stage(job: JobSpec, index: int) -> int | None:
    """megatron-core's number of model chunk `index`: none where each rank has one."""
    return index if job.parallelism.virtual_pipeline_model_parallel_size is not None else None
