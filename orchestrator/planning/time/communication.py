"""Seconds of communication: where a group lies, how fast its collectives are, and what of them is not hidden."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.planning.hardware.devices import Device
from orchestrator.spec.job import JobSpec


class Group(NamedTuple):
    """Ranks that communicate, as seen from one of them."""

    size: int
    bandwidth: float
    """B/s at which a rank sends and receives in a ring over the group."""
    latency: float
    """Seconds of the shortest collective."""
    contention: float
    """Part of a hidden collective's time that computing loses to it."""

    def gather_seconds(self, count: float) -> float:
        """All-gather of `count` bytes in all, or reduce-scatter: (n - 1) / n of them pass through each rank."""
        if self.size == 1:
            return 0.0
        return count * (self.size - 1) / self.size / self.bandwidth + self.latency

    def reduce_seconds(self, count: float) -> float:
        """All-reduce of `count` bytes: a reduce-scatter and an all-gather."""
        return 2 * self.gather_seconds(count)

    def send_seconds(self, count: float) -> float:
        """From one rank to another."""
        return 0.0 if self.size == 1 else count / self.bandwidth + self.latency

    def hidden(self, seconds: float, window: float) -> float:
        """What a collective costs that runs beside `window` seconds of computing: what does not fit, and contention."""
        return max(seconds - window, 0.0) + self.contention * min(seconds, window)

    def pipelined(self, seconds: float, window: float) -> float:
        """What one costs that is cut into a piece per rank, of which computing needs the first or makes the last. Copy
        engines move the pieces, so computing loses nothing to them.
        """
        return seconds / self.size + max(seconds * (1 - 1 / self.size) - window, 0.0)


def linked_ranks(job: JobSpec, device: Device) -> int:
    """Ranks whose GPUs are linked: those of a machine, or of the machines that links join."""
    return min(job.processes_per_node, device.gpus_per_node) * device.linked_machines


def group_of(job: JobSpec, device: Device, size: int, stride: int) -> Group:
    """The group of `size` ranks that are `stride` apart.

    Where it crosses machines, as many of its ranks as share a machine share their network ports too (NCCL runs a ring
    through each port), so a group with eight ranks in each machine is not slower than inside one.
    """
    efficiency, contention = device.efficiency, device.fitted.communication.contention
    link = device.link_bandwidth * efficiency.link
    together = max(1, min(size, linked_ranks(job, device) // stride))
    if together == size:
        return Group(size, link, efficiency.link_latency, contention)
    ports = together * device.network_bandwidth * efficiency.network
    bandwidth = min(link, ports)
    return Group(size, bandwidth, efficiency.network_latency, contention * bandwidth / link)
