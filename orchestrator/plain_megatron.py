"""Imported first by what needs megatron-core: loads it and torch as fast as they can be loaded.

megatron-core decorates functions with torch.compile when it is imported, which imports the whole compiler: 1.6 s of a
rank's 4 s. The CPU shim turns compilation off anyway, so that where there is no CUDA the functions are the same without
it.
"""

from __future__ import annotations

import importlib
from typing import Any

from orchestrator.imports import staying


def _as_it_is(model: Any = None, **options: Any) -> Any:
    """In place of torch.compile, as a decorator with options or without."""
    return model if model is not None else _as_it_is


with staying():
    import torch

    _torch: Any = torch
    _compile = _torch.compile
    if not torch.cuda.is_available():
        _torch.compile = _as_it_is
    try:
        importlib.import_module("megatron.core.jit")  # from here on megatron-core's own decorator is this one
    finally:
        _torch.compile = _compile
