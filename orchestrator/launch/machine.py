"""What measurements depend on beside the job: the machine, and the versions of what trains."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from orchestrator.kernel_selection.libraries import versions_of
from orchestrator.planning.hardware.local_gpus import gpus_here
from orchestrator.spec.job import JobSpec

_PACKAGES = ("torch", "megatron-core", "transformer-engine", "flash-attn-4")
_DRIVER_VERSION = Path("/proc/driver/nvidia/version")


def machine_for(job: JobSpec) -> str:
    """What a job is measured on. Machines with the same GPUs are as fast as each other; others are like no other."""
    models = [] if job.runtime.device == "cpu" else gpus_here()
    return models[0] if models else platform.node()


def versions() -> dict[str, str]:
    """Of what trains, where it is installed; nothing is imported."""
    return versions_of(_PACKAGES)


def driver_version() -> str | None:
    """Of the GPUs' driver, as its kernel module says; None where there is none."""
    if not _DRIVER_VERSION.exists():
        return None
    found = re.search(r"Kernel Module\D*?\s(\d+(?:\.\d+)+)", _DRIVER_VERSION.read_text(errors="replace"))
    return found.group(1) if found else None
