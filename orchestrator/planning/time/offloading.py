"""Seconds that a pass waits for activations on their way to the host's memory, or back."""

from __future__ import annotations

from orchestrator.planning.memory import offloaded_bytes
from orchestrator.planning.time.passes import Parts, Pass, add
from orchestrator.planning.time.setting import Setting
from orchestrator.spec.connections import device_connections

_REACHED = 0.85
"""Of the link's bandwidth, by pinned copies; PCIe 5.0 with 64 GB/s moves about 55."""


def with_offloading(setting: Setting, each: Pass, layers: int) -> Pass:
    """The passes over all `layers` of a rank. Transformer Engine (2.11, `DefaultOffloadSynchronizer`) copies the first
    ones' activations from the second layer on and is done before the last begins, and has them back in the same way:
    what those between do not cover is waited for. Where the GPU takes all work through one queue, what is computed
    comes behind the copy that it was given after, and covers no other.
    """
    moved = offloaded_bytes(setting.job, setting.kernels.layers)
    if not moved:
        return each
    copying = moved / (setting.device.host_bandwidth * _REACHED)

    count = setting.job.runtime.cpu_offloading_num_layers or 0

    def waiting(parts: Parts, covering: int) -> Parts:
        return add(parts, {"host_copies": max(copying - sum(parts.values()) * covering / layers, 0.0)})

    between = max(layers - 2, 0)
    in_order = device_connections(setting.job) == 1
    return Pass(waiting(each.forward, between), waiting(each.backward, min(count, between) if in_order else between))
