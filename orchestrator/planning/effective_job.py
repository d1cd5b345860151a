"""A job as a start of it computed: what its spec left open, by what the ranks chose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.planning.graphs import with_attention, with_graphs
from orchestrator.spec.job import JobSpec


def as_started(job: JobSpec, choices: Mapping[str, Any]) -> JobSpec:
    """`choices` are of the event `started`: its attention_backend, cuda_graphs and tp_comm_overlap. What it does not
    say, as earlier versions did not, stays as the job has it.
    """
    captured, overlaps = choices.get("cuda_graphs"), choices.get("tp_comm_overlap")
    if isinstance(captured, bool):
        job = with_graphs(job, captured)
    if overlaps is False:  # where it does, the job has it so
        parallelism = job.parallelism.model_copy(update={"tp_comm_overlap": False})
        job = job.model_copy(update={"parallelism": parallelism})
    return with_attention(job, choices.get("attention_backend"))
