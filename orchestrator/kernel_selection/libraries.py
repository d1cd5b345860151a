"""Libraries of kernels that a job needs, or takes where they are, beside torch and megatron-core."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

from orchestrator.errors import MissingDependency
from orchestrator.spec.job import JobSpec

_OF_STATE_SPACE = {"mamba_ssm": "mamba-ssm", "causal_conv1d": "causal-conv1d", "einops": "einops"}
EXTRA = "megatron-orchestrator[mamba]"
FLASH = "flash-attn-4"
"""The package of FlashAttention 4."""


def flash_version() -> str | None:
    """The version of that package here; None where there is none."""
    return versions_of([FLASH]).get(FLASH)


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Of those that are installed; nothing is imported."""
    import importlib.metadata  # a twentieth of the time of `validate`, which asks for no version

    found = {}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


@cache
def has_flash() -> bool:
    """Whether it is installed: the tuner asks of thousands of layouts. Its version is only looked up where there is a
    module that it could have.
    """
    return importlib.util.find_spec("flash_attn") is not None and flash_version() is not None


def is_engine_installed() -> bool:
    """Whether Transformer Engine is here; it is not imported."""
    return importlib.util.find_spec("transformer_engine") is not None


def libraries_missing(job: JobSpec) -> list[str]:
    """Packages that a job's layers need and this Python lacks; nothing is imported. The family needs those of state
    space layers whichever layers a hybrid has."""
    if not job.model.family.is_hybrid:
        return []
    return [
        package
        for module, package in _OF_STATE_SPACE.items()
        if module not in sys.modules and importlib.util.find_spec(module) is None
    ]


def require_libraries(job: JobSpec) -> None:
    """Raises MissingDependency where one of them is missing."""
    if missing := libraries_missing(job):
        raise MissingDependency(
            f"the state space layers of architecture: mamba need {' and '.join(missing)}, which this Python lacks: "
            f"pip install --no-build-isolation '{EXTRA}' on a machine with a GPU and CUDA's compiler"
        )
