"""Accelerators: their datasheet figures, the fraction of them that is reached, and the one that a job is planned for.

`device_named(name)` searches calibrated profiles first and raises UserError with the nearest name. `shipped(name)` is
never calibrated, and MFU is relative to it. `device_of(job, cluster)` returns a DeviceChoice that says how it was
chosen.
"""

from orchestrator.planning.hardware.devices import (
    CPU,
    Device,
    Efficiency,
    computing_unit,
    device_named,
    shipped,
    shipped_names,
)
from orchestrator.planning.hardware.planned_device import DeviceChoice, device_of

__all__ = [
    "CPU",
    "Device",
    "DeviceChoice",
    "Efficiency",
    "computing_unit",
    "device_named",
    "device_of",
    "shipped",
    "shipped_names",
]
