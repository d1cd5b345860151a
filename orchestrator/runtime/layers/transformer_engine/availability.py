"""Whether Transformer Engine is there, and what is said where it is not."""

from __future__ import annotations

from orchestrator.kernel_selection.libraries import is_engine_installed
from orchestrator.plain_megatron import ENGINE_TROUBLE
from orchestrator.runtime.processes.device import Device


def has_engine(device: Device) -> bool:
    """Whether its layers can compute on this device."""
    return device.is_cuda and is_engine_installed()


def trouble() -> str | None:
    """What is wrong with one that is installed; None where none is, or nothing is wrong."""
    return None if ENGINE_TROUBLE is None else f"Transformer Engine is installed, but does not load ({ENGINE_TROUBLE})"


def absence() -> str:
    """Why a run has torch's layers that needs the others."""
    return trouble() or "Transformer Engine is not installed, or there is no GPU"
