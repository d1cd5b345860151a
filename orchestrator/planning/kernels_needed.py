"""Libraries of kernels that a job needs beside torch and megatron-core."""

from __future__ import annotations

import importlib.util

from orchestrator.spec.job import JobSpec

_OF_STATE_SPACE = {"mamba_ssm": "mamba-ssm", "causal_conv1d": "causal-conv1d", "einops": "einops"}
EXTRA = "megatron-orchestrator[mamba]"


def libraries_missing(job: JobSpec) -> list[str]:
    """Packages that a job's layers need and this Python lacks; nothing is imported. The family needs those of state
    space layers whichever layers a hybrid has."""
    if job.model.architecture != "mamba":
        return []
    return [package for module, package in _OF_STATE_SPACE.items() if importlib.util.find_spec(module) is None]
