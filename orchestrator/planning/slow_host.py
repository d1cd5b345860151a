"""What a step takes where the host is slower than planned, which a plan cannot know."""

from __future__ import annotations

from orchestrator.kernel_selection.auto_values import settled
from orchestrator.kernel_selection.layers import layers_of
from orchestrator.planning.estimates import DeviceEstimates, machine_of
from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.hardware.fitted_constants import values
from orchestrator.spec.job import JobSpec


def slow_host_seconds(job: JobSpec, padded_vocab: int, device: Device) -> float | None:
    """Seconds of a step on a host half as fast, with the layers and the CUDA graphs that a run chooses there. None on
    the CPU, and of a GPU whose host was measured: its profile has that.
    """
    if device.is_cpu or device.efficiency.launch != values("efficiency", device.generation)["launch"]:
        return None
    machine = machine_of(device)
    slow = DeviceEstimates(padded_vocab, device.with_launch(device.fitted.host.slow_host * device.efficiency.launch))
    layers = layers_of(job, machine, slow).layers
    return slow.step(settled(job, layers, machine, slow), layers).seconds
