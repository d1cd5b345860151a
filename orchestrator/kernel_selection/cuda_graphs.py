"""Whether the passes over a micro-batch are a CUDA graph."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.kernel_selection.machine import MEASURED_ON, Estimates, Machine
from orchestrator.spec.job import JobSpec
from orchestrator.spec.rules.kernels.cuda_graphs import GRAPHS, obstacles
from orchestrator.spec.sections.runtime import Layers

_ANY_HOST = 1.0
"""Seconds to start a kernel: no GPU is slower than such a host."""


def with_graphs(job: JobSpec, captured: bool) -> JobSpec:
    """A job that says whether its passes are a graph."""
    return job if job.runtime.cuda_graphs is captured else job.changed(runtime={"cuda_graphs": captured})


def chooses_graphs(job: JobSpec, layers: Layers, machine: Machine, estimates: Estimates) -> bool:
    """What the spec says. Where it says nothing: where nothing is against it."""
    if job.runtime.cuda_graphs is not None:
        return job.runtime.cuda_graphs
    return against_graphs(job, layers, machine, estimates) is None


def against_graphs(job: JobSpec, layers: Layers, machine: Machine, estimates: Estimates) -> str | None:
    """Why a job that leaves it open has none; None on GPUs that they were measured on, where nothing stands in the way,
    the GPU may wait for the host, and memory is left.
    """
    if machine.generation != MEASURED_ON:
        return f"they were measured on {MEASURED_ON} GPUs, and this is {machine.name}"
    for field, reason in obstacles(job):
        return f"{field}: {reason}"
    if not estimates.faster_with_graphs(job, layers):
        return f"{machine.name} would not wait for the host"
    if estimates.fit(with_graphs(job, True), layers) != "fits":
        return f"they leave too little memory on {machine.name}"
    return None


class AgainstGraphs(NamedTuple):
    """What a rank of a run that leaves it open has against graphs, beside what the plan has."""

    why: str | None
    planned: str | None
    cause: str = ""
    """What has them captured although the plan has something against it."""
    began_with_them: bool = False

    def is_news(self, captured: bool) -> bool:
        """Whether the plan says something else than is done, or nothing, or the run began otherwise."""
        return captured != (self.planned is None) or (self.began_with_them and not captured)


def against_graphs_of_run(
    job: JobSpec, layers: Layers, machine: Machine, estimates: Estimates, start_seconds: float, before: bool | None
) -> AgainstGraphs:
    """With hosts that start a kernel in `start_seconds` if that is longer than planned. Several replicas add gradients
    up in another order with graphs than without, so they go on as they did `before`: whatever the host, as long as
    nothing else is against it.
    """
    keeps = before if job.data_parallel_size > 1 else None
    planned = against_graphs(job, layers, machine, estimates)
    if keeps is False:
        return AgainstGraphs(f"this run began without them, and {GRAPHS} changes that", planned)
    slow = estimates.behind(_ANY_HOST if keeps else start_seconds)
    times = f"{start_seconds / estimates.start_seconds:.1f} times"
    cause = "this run began with them" if keeps else f"a host takes {times} as long to start a kernel as planned"
    why = against_graphs(job, layers, machine, slow)
    return AgainstGraphs(why, planned, cause, began_with_them=keeps is True)
