"""Whether tests of FlashAttention 4 can run here."""

from __future__ import annotations

import functools

import pytest

from orchestrator.runtime.layers.attention.flash_availability import missing
from orchestrator.runtime.processes.device import select_device
from support.measured import needs_gpus


def needs_flash() -> None:
    """Skip the test where it cannot compute: it is an extra of ours, for Hopper GPUs alone."""
    needs_gpus(1, "torch")
    if (why := _lacks()) is not None:
        pytest.skip(f"FlashAttention 4 is an extra, of Hopper GPUs: {why}")


@functools.cache
def _lacks() -> str | None:
    return missing(select_device("cuda"))
