"""Imported first by what needs megatron-core: loads it and torch as fast as they can be loaded.

Where there is no CUDA, that is without torch's compiler, which takes longer to import than the rest of a rank. The CPU
shim turns compilation off anyway, so that nothing is computed in another way. It would be imported for two reasons:
megatron-core decorates functions with torch.compile, and torch's optimizers have methods that the compiler is told to
leave alone when they are first called.
"""

from __future__ import annotations

import importlib
from typing import Any

from orchestrator.imports import staying


def _as_it_is(model: Any = None, **options: Any) -> Any:
    """In place of torch.compile, as a decorator with options or without."""
    return model if model is not None else _as_it_is


def _leave_alone_from_the_start(owner: type) -> None:
    """Put the functions themselves where torch keeps what its compiler has made of them (torch._compile)."""
    for function in vars(owner).values():
        if (plain := getattr(function, "__wrapped__", None)) is not None:
            plain.__dynamo_disable = plain


with staying():
    import torch

    _torch: Any = torch
    _compile = _torch.compile
    if not torch.cuda.is_available():
        _torch.compile = _as_it_is
        _leave_alone_from_the_start(torch.optim.Optimizer)
    try:
        importlib.import_module("megatron.core.jit")  # from here on megatron-core's own decorator is this one
    finally:
        _torch.compile = _compile
