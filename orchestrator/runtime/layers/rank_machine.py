"""This rank's machine as the choices of `kernel_selection` know it, and the plan's estimates for it."""

from __future__ import annotations

from orchestrator.kernel_selection.libraries import has_flash
from orchestrator.kernel_selection.machine import Estimates, Machine
from orchestrator.planning.hardware import device_named
from orchestrator.runtime.layers.transformer_engine.availability import has_engine
from orchestrator.runtime.processes.device import Device


def machine_and_estimates(device: Device, padded_vocab: int) -> tuple[Machine, Estimates]:
    """Of a GPU. Raises UserError where it is in no list, or its calibrated profile cannot be read."""
    # Only here, and only where a run on a GPU leaves something open, does a training ask the planner's estimates.
    from orchestrator.planning.estimates import DeviceEstimates

    known = device_named(device.name)
    machine = Machine(
        name=known.name,
        generation=known.generation,
        is_cpu=known.is_cpu,
        has_engine=has_engine(device),
        has_flash=has_flash(),
    )
    return machine, DeviceEstimates(padded_vocab, known)
