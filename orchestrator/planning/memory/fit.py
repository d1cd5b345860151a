"""Whether a job's memory fits into a GPU."""

from __future__ import annotations

from typing import Protocol

from orchestrator.kernel_selection.machine import Fit
from orchestrator.planning.memory.stages import Memory

TIGHT = 0.92
"""Part of a GPU's memory above which a job is one surprise away from not fitting: the estimate may be 5 % off."""


class HasMemory(Protocol):
    """What is asked of a device."""

    @property
    def memory_bytes(self) -> int | None: ...


def capacity(memory: Memory, device: HasMemory) -> Fit:
    """Compare the fullest stage with the device's memory; "unknown" where that is, as on the CPU."""
    total = device.memory_bytes
    if total is None:
        return "unknown"
    if memory.device_bytes > total:
        return "does not fit"
    return "tight" if memory.device_bytes > TIGHT * total else "fits"
