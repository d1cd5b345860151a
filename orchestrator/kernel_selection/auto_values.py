"""A job that says what its spec leaves open: as it is chosen for a machine, or as a start of it chose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.kernel_selection.attention import takes_flash, with_attention
from orchestrator.kernel_selection.cuda_graphs import chooses_graphs, with_graphs
from orchestrator.kernel_selection.machine import Estimates, Machine
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers


def settled(job: JobSpec, layers: Layers, machine: Machine, estimates: Estimates) -> JobSpec:
    """A job that says what is done on such a machine."""
    job = on_cpu(job) if machine.is_cpu else job
    job = with_attention(job, "flash") if takes_flash(job, machine) else job
    return with_graphs(job, chooses_graphs(job, layers, machine, estimates))


def on_cpu(job: JobSpec) -> JobSpec:
    """A job that says that it is trained on the CPU, which has no kernels of ours."""
    return job if job.runtime.device == "cpu" else job.changed(runtime={"device": "cpu"})


def depends_on_host(job: JobSpec) -> bool:
    """Whether how fast a run's hosts are decides about it."""
    return job.runtime.layers == "auto" or job.runtime.cuda_graphs is None


def as_started(job: JobSpec, choices: Mapping[str, Any]) -> JobSpec:
    """`choices` are of the event `started`: its attention_backend, cuda_graphs and tp_comm_overlap. What it does not
    say, as earlier versions did not, stays as the job has it.
    """
    captured, overlaps = choices.get("cuda_graphs"), choices.get("tp_comm_overlap")
    if isinstance(captured, bool):
        job = with_graphs(job, captured)
    if overlaps is False:  # where it does, the job has it so
        job = job.changed(parallelism={"tp_comm_overlap": False})
    return with_attention(job, choices.get("attention_backend"))
