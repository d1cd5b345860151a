"""Accelerators: what their datasheets promise, what of it is reached, and which one a job is planned for.

`device_named(name)` asks calibrated profiles first and raises UserError with the nearest name; `shipped(name)` is
never calibrated, and is what MFU is against. `device_of(job, cluster)` gives a DeviceChoice that says how it was
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
