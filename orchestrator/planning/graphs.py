"""Passes as a CUDA graph: a job that leaves it open, with what is chosen for it."""

from __future__ import annotations

from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.time import captures_passes
from orchestrator.spec.job import JobSpec
from orchestrator.spec.runtime import Layers


def with_graphs(job: JobSpec, captured: bool) -> JobSpec:
    """A job that says whether its passes are a graph."""
    return job.model_copy(update={"runtime": job.runtime.model_copy(update={"cuda_graphs": captured})})


def settled(job: JobSpec, padded_vocab: int, layers: Layers, device: Device) -> JobSpec:
    """A job with what the runtime chooses on such a device."""
    return with_graphs(job, captures_passes(job, padded_vocab, layers, device))
