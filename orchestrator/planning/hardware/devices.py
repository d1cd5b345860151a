"""Accelerators by name: datasheet figures from `devices.json`, and what of them is reached in training: where that file
has no other, `efficiency` in `fitted_constants.json`.

The units of the file are in its keys (TFLOP/s dense, GiB as the driver reports it, GB/s in one direction); here all is
in bytes, seconds and FLOP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.fields.formatting import shorten
from orchestrator.planning.hardware import profiles
from orchestrator.planning.hardware.fitted_constants import FittedConstants, fitted_constants, values
from orchestrator.planning.hardware.profiles import GpuProfile
from orchestrator.spec.messages.suggestions import closest
from orchestrator.spec.sections.runtime import Layers

CPU = "cpu"
"""The name of the device that stands for one process on the CPU."""


def computing_unit(device: object) -> str:
    """What a speed is told of one of, for the name of a device: a GPU; on the CPU the process itself."""
    return "process" if device == CPU else "GPU"


_OF_THE_MACHINE = {"memory_bytes", "gpus_per_node", "link_bandwidth", "network_bandwidth", "layers"}


@dataclass(frozen=True)
class Efficiency:
    """What of a datasheet is reached. `orchestrator calibrate` replaces what is shipped by what it measures."""

    gemm: float
    """Of the peak: a matrix product that is large in every dimension and that no power limit holds back, before tiles
    are cut (planning/time/kernels/gemm.py)."""
    gemm_at_power_limit: float
    """Of the peak: what products reach at the most, one after another, where the GPU lowers its clock to keep to its
    power. Steps of large ones are at that limit throughout."""
    attention_forward: float
    """Of the peak: torch's fused attention (on Hopper cuDNN's), heads of 128 and 4,096 tokens, counting what a causal
    mask leaves."""
    attention_backward: float
    """The same in the backward pass, which recomputes the scores: 2.5 times the forward's FLOPs."""
    fused_attention_forward: float
    """Of the peak: Transformer Engine's (cuDNN's) attention."""
    fused_attention_backward: float
    """The same in the backward pass."""
    memory: float
    """Of the memory's bandwidth: kernels that stream."""
    link: float
    """Of the link to the other GPUs of the machine: all-gather and reduce-scatter of large tensors."""
    network: float
    """Of the network between machines."""
    link_latency: float
    """Minimum seconds of a collective within a machine."""
    network_latency: float
    """The same between machines."""
    launch: float
    """Seconds in which the host starts one kernel; what a layer's Python takes beside it is planning/time/host.py's."""


@dataclass(frozen=True)
class Device:
    """One accelerator in its usual machine, and what is reached on it."""

    name: str
    base: str
    """The shipped device whose datasheet it has: itself, or that of a calibrated one."""
    generation: str | None
    """What its kind is called, "Hopper" for one; None for the CPU."""
    peak_flops: Mapping[str, float]
    """FLOP/s by dtype (bf16, fp16, fp32, fp8, fp4), dense, as the datasheet says."""
    memory_bytes: int | None
    """What the driver reports; None for the CPU."""
    memory_bandwidth: float
    """B/s."""
    link_bandwidth: float
    """B/s in one direction, from one GPU to the others of its machine (NVLink, Infinity Fabric, PCIe)."""
    network_bandwidth: float
    """B/s in one direction and per GPU, to other machines."""
    host_bandwidth: float
    """B/s in one direction and per GPU, to the memory of its own machine."""
    gpus_per_node: int
    multiprocessors: int
    """What works on the tiles of a matrix product at once: streaming multiprocessors, compute units."""
    power_watts: float
    source: str
    efficiency: Efficiency
    compute_capability: str | None = None
    """CUDA's, "10.0" for one: which kernels a GPU has; None where CUDA does not run."""
    linked_machines: int = 1
    """Machines whose GPUs are linked as those of one are."""
    layers: Layers | None = None
    """Whose layers the jobs on it have, where a profile says so or it is another machine's; None: what is installed
    here tells."""

    @property
    def is_cpu(self) -> bool:
        """Whether its figures are nominal, so that no MFU is stated against them."""
        return self.memory_bytes is None

    @property
    def has_microscaling(self) -> bool:
        """Whether it multiplies blocks of 32 and 16 elements with scaling factors of their own (MXFP8, NVFP4)."""
        return self.compute_capability is not None and self.compute_capability.startswith("10.")

    @property
    def fitted(self) -> FittedConstants:
        """What was fitted to measurements of GPUs of its generation, or holds for any."""
        return fitted_constants(self.generation)

    def with_launch(self, seconds: float) -> Device:
        """The same behind a host that starts a kernel in so many."""
        return replace(self, efficiency=replace(self.efficiency, launch=seconds))


def device_named(name: str) -> Device:
    """The device of that name: a calibrated one where there is a profile for it, else a shipped one.

    Case does not matter; names as CUDA reports them ("NVIDIA H100 80GB HBM3") and as clusters write them ("a100_80gb")
    are known too. Raises UserError that names the nearest, and SpecError when the profile is wrong.
    """
    own = {_plain(known): (known, path) for known, path in profiles.known_gpus().items()}
    listed = shipped(name)
    found = own.get(_plain(name)) or (own.get(_plain(listed.name)) if listed else None)
    if found is not None:
        return _read(*found)
    if listed is None:
        raise UserError(_unknown(name, [known for known, _ in own.values()]), code="unknown_gpu")
    return listed


def calibrated(name: str, base: Device, profile: GpuProfile) -> Device:
    """A device with what its profile says it reaches."""
    given = profile.model_dump(include=_OF_THE_MACHINE, exclude_none=True)
    measured = replace(base.efficiency, **profile.efficiency.model_dump(exclude_none=True))
    return replace(base, name=name, efficiency=measured, **given)


def _read(name: str, path: Path) -> Device:
    profile = profiles.read_gpu(path)
    base = shipped(profile.base)
    if base is None:
        raise UserError(f"{path}: base: {_unknown(profile.base, [])}", code="unknown_gpu")
    return calibrated(name, base, profile)


@lru_cache(maxsize=16)
def shipped(name: str) -> Device | None:
    """A device as `devices.json` describes it, never calibrated; None where it is unknown. Each step asks for one."""
    plain = _plain(name)
    for device, _ in _shipped():
        if _plain(device.name) == plain:
            return device
    return next((device for device, patterns in _shipped() if any(_holds(plain, words) for words in patterns)), None)


def shipped_names() -> tuple[str, ...]:
    """Names of all shipped devices."""
    return tuple(device.name for device, _ in _shipped())


def _holds(plain: str, words: str) -> bool:
    """Whether a name has these words in this order; H20 is no part of H200, nor A10 of A10G."""
    return re.search(".*".join(rf"\b{re.escape(word)}\b" for word in words.split()), plain) is not None


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name[:200]).strip().upper()


def _unknown(name: str, calibrated: list[str]) -> str:
    names = list({_plain(known): known for known in (*shipped_names(), *calibrated)}.values())
    near = closest(name, names)
    meant = f": did you mean {' or '.join(near)}?" if near else ""
    return f"unknown GPU {shorten(repr(name))}{meant} (known: {', '.join(names)}; `orchestrator calibrate` adds one)"


@cache
def _shipped() -> tuple[tuple[Device, tuple[str, ...]], ...]:
    """Every shipped device, special ones before general ones, with the words to know each by."""
    text = Path(__file__).with_name("devices.json").read_text(encoding="utf-8")
    return tuple((_device(entry), tuple(entry["match"])) for entry in json.loads(text)["devices"])


def _device(entry: Mapping[str, Any]) -> Device:
    memory = entry["memory_gib"]
    return Device(
        name=entry["name"],
        base=entry["name"],
        generation=entry.get("generation"),
        peak_flops={dtype: tflops * 1e12 for dtype, tflops in entry["peak_tflops"].items()},
        memory_bytes=None if memory is None else int(memory * 2**30),
        memory_bandwidth=entry["memory_gb_per_s"] * 1e9,
        link_bandwidth=entry["link_gb_per_s"] * 1e9,
        network_bandwidth=entry["network_gb_per_s"] * 1e9,
        host_bandwidth=entry["host_gb_per_s"] * 1e9,
        gpus_per_node=entry["gpus_per_node"],
        multiprocessors=entry["multiprocessors"],
        power_watts=float(entry["power_watts"]),
        source=entry["source"],
        efficiency=Efficiency(**values("efficiency", entry.get("generation")) | entry.get("efficiency", {})),
        compute_capability=entry.get("compute_capability"),
        linked_machines=entry.get("linked_machines", 1),
    )
