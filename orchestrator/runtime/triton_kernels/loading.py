"""Finding a module of kernels where there is a GPU to run them."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any

from orchestrator.errors import MissingDependency


@cache
def kernels(module: str, what: str) -> Any:
    """A module of this package. Raises MissingDependency where Triton did not come with torch, as it does for GPUs."""
    if importlib.util.find_spec("triton") is None:
        raise MissingDependency(f"{what} on a GPU needs Triton, which is not installed: install triton")
    return importlib.import_module(f"orchestrator.runtime.triton_kernels.{module}")
