"""What a step takes where the host is slower than planned, which a plan cannot know."""

from __future__ import annotations

from orchestrator.planning.graphs import settled
from orchestrator.planning.hardware.devices import Device, Efficiency
from orchestrator.planning.layers import layers_of
from orchestrator.planning.time import estimate_time
from orchestrator.spec.job import JobSpec

SLOWER = 2.0
"""Hosts with the same GPU were 0.7 to 2.7 times as slow as planned (docs/benchmarks/2026-11-25-h100.md)."""


def slow_host_seconds(job: JobSpec, padded_vocab: int, device: Device) -> float | None:
    """Seconds of a step on a host half as fast, with the layers and the CUDA graphs that a run chooses there. None on
    the CPU, and of a GPU whose host was measured: its profile has that.
    """
    if device.is_cpu or device.efficiency.launch != Efficiency.launch:
        return None
    slow = device.with_launch(SLOWER * device.efficiency.launch)
    layers, _ = layers_of(job, padded_vocab, slow)
    return estimate_time(settled(job, padded_vocab, layers, slow), padded_vocab, layers, slow).step_seconds
