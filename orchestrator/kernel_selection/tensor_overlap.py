"""Whether tensor parallelism sends while it multiplies."""

from __future__ import annotations

from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.parallelism.tensor_overlap import obstacles
from orchestrator.spec.sections.runtime import Layers


def overlaps_tensor_parallel(job: JobSections, layers: Layers) -> bool:
    """Whether products overlap with what tensor parallelism sends: Transformer Engine's do."""
    return layers == "transformer_engine" and wants_overlap(job)


def wants_overlap(job: JobSections) -> bool:
    """Whether they are to, where the layers and the machine can: with tensor parallelism, unless it is switched off, or
    is not asked for in words and something stands in the way.
    """
    degrees = job.parallelism
    if degrees.tensor_model_parallel_size == 1 or degrees.tp_comm_overlap is False:
        return False
    return degrees.tp_comm_overlap is True or next(obstacles(job), None) is None
