"""Whose layers compute: Transformer Engine's where they are there, but torch's where the host holds the others up,
since they ask less of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from orchestrator.kernel_selection.auto_values import settled
from orchestrator.kernel_selection.machine import MEASURED_ON, Estimates, Machine
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers

WORTH = 0.1
"""Share of a step that torch's layers are to save before they are taken: hosts differ by more than the plan knows, and
on a fast one nothing is saved."""


class PlannedLayers(NamedTuple):
    """The layers to plan for: what a run takes, as far as can be told."""

    layers: Layers
    why: str
    saved_by_torch: float | None = None
    """`saved_by_torch` of the job, where it was asked for and is worth nothing: no need to estimate it again."""


def layers_of(job: JobSpec, machine: Machine, estimates: Estimates) -> PlannedLayers:
    """The layers to plan for, and why."""
    there, why = layers_there(job, machine)
    if job.runtime.layers != "auto" or there != "transformer_engine":
        return PlannedLayers(there, why)
    saved = saved_by_torch(job, machine, estimates)
    if saved < WORTH:
        return PlannedLayers(there, why, saved)
    return PlannedLayers("torch", f"auto: the host holds up Transformer Engine's, and a step takes {saved:.0%} less")


def layers_there(job: JobSpec, machine: Machine) -> tuple[Layers, str]:
    """The same whatever the host takes."""
    written = job.runtime.layers
    if written != "auto":
        return written, "runtime.layers"
    if job.model.has_adapters:
        return "torch", "auto: adapters stand beside torch's layers"
    if job.precision.quantization is not None:
        return "transformer_engine", f"auto: they multiply in {job.precision.products.upper()}"
    if machine.is_cpu:
        return "torch", "on the CPU"
    return _FOUND[machine.is_here, machine.has_engine]


_FOUND: Mapping[tuple[bool, bool], tuple[Layers, str]] = {
    (True, True): ("transformer_engine", "auto: Transformer Engine is installed here"),
    (True, False): ("torch", "auto: Transformer Engine is not installed here"),
    (False, True): ("transformer_engine", "auto: Transformer Engine is expected on that machine"),
    (False, False): ("torch", "auto: a profile says that Transformer Engine is not installed on that machine"),
}
"""Whether it was looked for here, and whether it is there."""


def saved_by_torch(job: JobSpec, machine: Machine, estimates: Estimates) -> float:
    """The share of a step with Transformer Engine's layers that torch's save, where the GPU waits for the host and they
    can take the others' place and fit; else 0.
    """
    if machine.generation != MEASURED_ON or demands_of_engine(job) or _prefers_engine(job):
        return 0.0
    engines = estimates.step(settled(job, "transformer_engine", machine, estimates), "transformer_engine")
    torchs = settled(job, "torch", machine, estimates)
    if engines.host == 0 or estimates.fit(torchs, "torch") == "does not fit":
        return 0.0
    return max(1 - estimates.step(torchs, "torch").seconds / engines.seconds, 0.0)


def demands_of_engine(job: JobSpec) -> list[str]:
    """Fields that ask for what only Transformer Engine's layers can do."""
    asked = {
        "precision.fp8": job.precision.fp8 is not None,
        "precision.fp4": job.precision.fp4 is not None,
        "runtime.cpu_offloading_num_layers": job.runtime.cpu_offloading_num_layers is not None,
        "model.moe_grouped_gemm": job.model.moe_grouped_gemm is True,
        "parallelism.tp_comm_overlap": job.parallelism.tp_comm_overlap is True,
    }
    return [path for path, is_asked in asked.items() if is_asked]


def _prefers_engine(job: JobSpec) -> bool:
    """Whether they alone do it well."""
    return job.model.has_experts or job.model.sliding_window is not None


def may_have_engine(job: JobSpec) -> bool:
    """Whether Transformer Engine's layers may compute, as far as the spec says."""
    return job.runtime.layers != "torch" and job.runtime.device != "cpu" and not job.model.has_adapters


def asked_layers(job: JobSpec) -> Layers | Literal["auto"]:
    """Those that a run has whatever its machine, or `auto`. Adapters stand beside torch's."""
    return "torch" if job.model.has_adapters else job.runtime.layers


def against_engine(job: JobSpec, machine: Machine, estimates: Estimates) -> str | None:
    """Why a rank of a run that begins would have torch's layers in place of Transformer Engine's."""
    saved = saved_by_torch(job, machine, estimates)
    if saved < WORTH:
        return None
    return f"with Transformer Engine's this GPU would wait for its host, by the plan, and a step takes {saved:.0%} less"


class LayersOfRun(NamedTuple):
    """The layers of a run that leaves them open."""

    layers: Layers
    why: str | None = None
    """Where it is not what one would expect."""


def layers_of_run(job: JobSpec, why: str | None, before: str | None, *, lacks_engine: bool) -> LayersOfRun:
    """Of all its ranks: torch's where one of them lacks Transformer Engine (`why`: what is wrong with it) or is against
    it (`why`: `against_engine`). Else what the run had `before`, whose steps it is to go on with to the bit, unless it
    had torch's and asks for what they cannot do.
    """
    if lacks_engine:
        lost = "Transformer Engine is not there on every rank" if before == "transformer_engine" else None
        return LayersOfRun("torch", why or lost)
    found = LayersOfRun("transformer_engine" if why is None else "torch", why)
    changes = before == "torch" and demands_of_engine(job)
    if before not in ("torch", "transformer_engine") or before == found.layers or changes:
        return found
    kept: Layers = "torch" if before == "torch" else "transformer_engine"
    return LayersOfRun(kept, "this run began with them, and runtime.layers changes that")
