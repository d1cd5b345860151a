"""What a job leaves open and its device decides: above all whether passes are a CUDA graph, as the plan and the runtime
choose it.
"""

from __future__ import annotations

from orchestrator.backends.attention import may_use_flash
from orchestrator.backends.libraries import has_flash
from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.memory import capacity, estimate_memory
from orchestrator.planning.time import faster_with_graphs
from orchestrator.spec.job import JobSpec
from orchestrator.spec.rules.cuda_graphs import obstacles
from orchestrator.spec.runtime import Layers

MEASURED_ON = "Hopper"
"""A GPU's generation. On others libraries choose other kernels, some of which ask the GPU for numbers."""


def with_graphs(job: JobSpec, captured: bool) -> JobSpec:
    """A job that says whether its passes are a graph."""
    return job.model_copy(update={"runtime": job.runtime.model_copy(update={"cuda_graphs": captured})})


def with_attention(job: JobSpec, backend: str | None) -> JobSpec:
    """A job that says what computes its attention: `flash` or `fused`, as a start says it. Other words leave it."""
    if backend not in ("flash", "fused"):
        return job
    return job.model_copy(update={"runtime": job.runtime.model_copy(update={"attention_backend": backend})})


def settled(job: JobSpec, padded_vocab: int, layers: Layers, device: Device) -> JobSpec:
    """A job that says what is done on such a device."""
    job = _with_flash(on_device(job, device), device)
    return with_graphs(job, chooses_graphs(job, padded_vocab, layers, device))


def on_device(job: JobSpec, device: Device) -> JobSpec:
    """A job that says so where it is trained on the CPU, which has no kernels of ours."""
    if not device.is_cpu:
        return job
    return job.model_copy(update={"runtime": job.runtime.model_copy(update={"device": "cpu"})})


def _with_flash(job: JobSpec, device: Device) -> JobSpec:
    """A job that says so where FlashAttention 4 is there, as far as this machine can tell: the runtime takes it."""
    is_open = job.runtime.attention_backend == "auto" and device.generation == MEASURED_ON
    takes_flash = is_open and may_use_flash(job) and has_flash()
    return with_attention(job, "flash") if takes_flash else job


def chooses_graphs(job: JobSpec, padded_vocab: int, layers: Layers, device: Device) -> bool:
    """What the spec says. Where it says nothing: where nothing is against it."""
    if job.runtime.cuda_graphs is not None:
        return job.runtime.cuda_graphs
    return against_graphs(job, padded_vocab, layers, device) is None


def against_graphs(job: JobSpec, padded_vocab: int, layers: Layers, device: Device) -> str | None:
    """Why a job that leaves it open has none; None on GPUs that they were measured on, where nothing stands in the way,
    the GPU may wait for the host, and memory is left.
    """
    if device.generation != MEASURED_ON:
        return f"they were measured on {MEASURED_ON} GPUs, and this is {device.name}"
    for field, reason in obstacles(job):
        return f"{field}: {reason}"
    if not faster_with_graphs(job, padded_vocab, layers, device):
        return f"{device.name} does not wait for the host"
    if capacity(estimate_memory(with_graphs(job, True), padded_vocab, layers), device) != "fits":
        return f"they leave too little of the memory of {device.name}"
    return None
