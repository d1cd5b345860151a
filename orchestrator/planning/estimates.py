"""What is estimated of a job on a device, as `kernel_selection` weighs it; and the device as it knows it."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.kernel_selection.libraries import has_flash, is_engine_installed
from orchestrator.kernel_selection.machine import Fit, Machine, Step
from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.memory import capacity, estimate_memory
from orchestrator.planning.time import estimate_time, faster_with_graphs
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers


def machine_of(device: Device) -> Machine:
    """What is assumed of the machines with a device: what is installed here, where nothing says what they have."""
    looked_for = device.layers is None
    return Machine(
        name=device.name,
        generation=device.generation,
        is_cpu=device.is_cpu,
        has_engine=not device.is_cpu and is_engine_installed() if looked_for else device.layers == "transformer_engine",
        has_flash=has_flash(),
        is_here=looked_for,
    )


class DeviceEstimates(NamedTuple):
    """The estimates for a device, of jobs whose vocabulary has so many rows."""

    padded_vocab: int
    device: Device

    @property
    def start_seconds(self) -> float:
        """Seconds in which its host starts one kernel."""
        return self.device.efficiency.launch

    def behind(self, start_seconds: float) -> DeviceEstimates:
        """The same behind a host that takes so long to start one, if that is longer: what is chosen for a faster one
        stands.
        """
        return self._replace(device=self.device.with_launch(max(self.start_seconds, start_seconds)))

    def step(self, job: JobSpec, layers: Layers) -> Step:
        """A step of a job that leaves nothing open."""
        time = estimate_time(job, self.padded_vocab, layers, self.device)
        return Step(time.step_seconds, time.parts["host"])

    def faster_with_graphs(self, job: JobSpec, layers: Layers) -> bool:
        """Whether a job is faster where its passes are CUDA graphs."""
        return faster_with_graphs(job, self.padded_vocab, layers, self.device)

    def fit(self, job: JobSpec, layers: Layers) -> Fit:
        """How a job that leaves nothing open fits into the GPU's memory."""
        return capacity(estimate_memory(job, self.padded_vocab, layers), self.device)
