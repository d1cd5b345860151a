"""The GPUs of this machine, as its driver shows them: no library is asked, and none is imported."""

from __future__ import annotations

from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/gpus")
DEVICES = Path("/dev")
_UNCOUNTED = ("kfd", "dxg", "nvmap")
"""Devices of AMD's GPUs, of Windows' below Linux, and of Jetsons: how many there are, only their libraries know."""


def gpus_here() -> list[str]:
    """The models of this machine's GPUs, as its driver names them; empty where there is none."""
    models = []
    for information in sorted(DRIVER.glob("*/information")):
        for line in information.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model":
                models.append(value.strip())
    return models


def gpus_counted() -> int | None:
    """How many GPUs this machine shows; None where it may have some that cannot be counted without their library."""
    count = max(len(gpus_here()), len(list(DEVICES.glob("nvidia[0-9]*"))))
    return None if count == 0 and any((DEVICES / name).exists() for name in _UNCOUNTED) else count
