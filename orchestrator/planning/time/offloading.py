"""Seconds that a pass waits for activations on their way to the host's memory, or back."""

from __future__ import annotations

from orchestrator.planning.memory import offloaded_bytes
from orchestrator.planning.time.passes import Parts, Pass, add
from orchestrator.planning.time.setting import Setting

_REACHED = 0.85
"""Of the link's bandwidth, by pinned copies; PCIe 5.0 with 64 GB/s moves about 55."""


def with_offloading(setting: Setting, each: Pass) -> Pass:
    """The passes over all layers of a rank. Transformer Engine spreads the copies over them, and what these do not
    cover is waited for, each way.
    """
    moved = offloaded_bytes(setting.job, setting.kernels.layers)
    if not moved:
        return each
    copying = moved / (setting.device.host_bandwidth * _REACHED)

    def waiting(parts: Parts) -> Parts:
        return add(parts, {"host_copies": max(copying - sum(parts.values()), 0.0)})

    return Pass(waiting(each.forward), waiting(each.backward))
