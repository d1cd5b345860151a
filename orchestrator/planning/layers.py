"""The layers of a job that leaves them open, as the plan and the runtime choose them: Transformer Engine's, but torch's
where the host holds the others up, since they ask less of it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from orchestrator.planning.graphs import MEASURED_ON, settled
from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.memory import capacity, estimate_memory
from orchestrator.planning.time import estimate_time
from orchestrator.spec.job import JobSpec
from orchestrator.spec.runtime import Layers

WORTH = 0.1
"""Share of a step that torch's layers are to save before they are taken: hosts differ by more than the plan knows, and
on a fast one nothing is saved."""


def layers_of(job: JobSpec, padded_vocab: int, device: Device) -> tuple[Layers, str]:
    """The layer implementation to plan for, and why: what the runtime takes, as far as this machine can tell."""
    there, why = layers_there(job, device)
    if job.runtime.layers == "auto" and there == "transformer_engine":
        saved = saved_by_torch(job, padded_vocab, device)
        if saved >= WORTH:
            return "torch", f"auto: the host holds up Transformer Engine's, and a step takes {saved:.0%} less"
    return there, why


def layers_there(job: JobSpec, device: Device) -> tuple[Layers, str]:
    """The same whatever the host takes."""
    written = job.runtime.layers
    if written != "auto":
        return written, "runtime.layers"
    if job.model.lora is not None:
        return "torch", "auto: adapters stand beside torch's layers"
    if job.precision.fp8 is not None:
        return "transformer_engine", "auto: they multiply in FP8"
    if device.is_cpu:
        return "torch", "on the CPU"
    return _FOUND[device.layers is None, has_engine(device)]


_FOUND: Mapping[tuple[bool, bool], tuple[Layers, str]] = {
    (True, True): ("transformer_engine", "auto: Transformer Engine is installed here"),
    (True, False): ("torch", "auto: Transformer Engine is not installed here"),
    (False, True): ("transformer_engine", "auto: Transformer Engine is expected on that machine"),
    (False, False): ("torch", "auto: a profile says that Transformer Engine is not installed on that machine"),
}
"""Whether it was looked for here, and whether it is there."""


def has_engine(device: Device) -> bool:
    """Whether Transformer Engine is installed where jobs on a device run, as far as this machine can tell."""
    if device.layers is not None:
        return device.layers == "transformer_engine"
    return not device.is_cpu and importlib.util.find_spec("transformer_engine") is not None


def saved_by_torch(job: JobSpec, padded_vocab: int, device: Device) -> float:
    """The share of a step with Transformer Engine's layers that torch's save, where the GPU waits for the host and they
    can take the others' place and fit; else 0.
    """
    if device.generation != MEASURED_ON or demands_of_engine(job) or _prefers_engine(job):
        return 0.0
    engines = settled(job, padded_vocab, "transformer_engine", device)
    time = estimate_time(engines, padded_vocab, "transformer_engine", device)
    torchs = settled(job, padded_vocab, "torch", device)
    if time.parts["host"] == 0 or capacity(estimate_memory(torchs, padded_vocab, "torch"), device) == "does not fit":
        return 0.0
    return max(1 - estimate_time(torchs, padded_vocab, "torch", device).step_seconds / time.step_seconds, 0.0)


def demands_of_engine(job: JobSpec) -> list[str]:
    """Fields that ask for what only Transformer Engine's layers can do."""
    asked = {
        "precision.fp8": job.precision.fp8 is not None,
        "runtime.cpu_offloading_num_layers": job.runtime.cpu_offloading_num_layers is not None,
        "model.moe_grouped_gemm": job.model.moe_grouped_gemm is True,
        "parallelism.tp_comm_overlap": job.parallelism.tp_comm_overlap is True,
    }
    return [path for path, is_asked in asked.items() if is_asked]


def _prefers_engine(job: JobSpec) -> bool:
    """Whether they alone do it well."""
    return job.model.num_experts is not None or job.model.sliding_window is not None
