"""Imported first by what needs megatron-core: loads it and torch as fast as they can be loaded.

Where there is no CUDA, that is without torch's compiler, which takes longer to import than the rest of a rank. The CPU
shim turns compilation off anyway, so that nothing is computed in another way. It would be imported for two reasons:
megatron-core decorates functions with torch.compile, and torch's optimizers have methods that the compiler is told to
leave alone when they are first called.

Without W&B's and TensorBoard's clients, which megatron-core imports wherever they are installed, for writers that
nothing here gives it: an eighth of a rank's imports. Our own trackers import them when a job asks for them.

Where there is CUDA, with one cuDNN for torch and Transformer Engine. A Transformer Engine that does not load is taken
for one that is not there, and `ENGINE_TROUBLE` says why.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from orchestrator.imports import staying, without


def _as_it_is(model: Any = None, **options: Any) -> Any:
    """In place of torch.compile, as a decorator with options or without."""
    return model if model is not None else _as_it_is


def leave_alone_from_the_start(owner: type) -> None:
    """Put the functions themselves where torch keeps what its compiler has made of them (torch._compile): the compiler
    is told to leave them alone when they are first called, and is imported for that.
    """
    for function in vars(owner).values():
        if (plain := getattr(function, "__wrapped__", None)) is not None:
            plain.__dynamo_disable = plain


def share_torchs_cudnn() -> None:
    """Have Transformer Engine, which megatron-core imports, use the cuDNN that torch has loaded.

    It would load the system's, and its library asks for cuDNN's parts by names that lead there too. With an older one
    torch no longer takes cuDNN for attention (seen on an H200 with cuDNN 9.14 beside torch's 9.19: attention took 1.8
    times as long), or the parts of the two do not fit each other. A person's own CUDNN_HOME or CUDNN_PATH stands.
    """
    loaded = file_of("libcudnn.so")
    if loaded is None or "CUDNN_HOME" in os.environ or "CUDNN_PATH" in os.environ:
        return
    os.environ["CUDNN_HOME"] = str(loaded.parent)
    major = loaded.name.partition(".so.")[2].partition(".")[0]
    parts = sorted(loaded.parent.glob(f"libcudnn_*.so.{major}"))
    for part in sorted(parts, key=lambda path: not path.name.startswith(_CUDNN_BASES)):
        with contextlib.suppress(OSError):  # who needs that part says so better
            ctypes.CDLL(str(part), mode=ctypes.RTLD_GLOBAL)


_ENGINE = "transformer_engine"
_CUDNN_BASES = ("libcudnn_graph", "libcudnn_ops")
"""The parts that others are linked against come first: a part that is loaded is not looked for."""


def _trouble_with_transformer_engine() -> str | None:
    """Why it does not load where it is installed: without its part for torch, or made for another torch, it raises
    whatever it comes to. megatron-core, which imports it first of all, takes only an ImportError for its absence.
    """
    if importlib.util.find_spec(_ENGINE) is None:
        return None
    try:
        importlib.import_module(f"{_ENGINE}.pytorch")
    except Exception as error:
        for name in [name for name in sys.modules if name.partition(".")[0] == _ENGINE]:
            del sys.modules[name]
        modules: dict[str, Any] = sys.modules
        modules[_ENGINE] = None  # from here on to import it is an ImportError
        said = next(iter(str(error).splitlines()), "").rstrip(".")
        return f"{type(error).__name__}: {said}" if said else type(error).__name__
    return None


def file_of(library: str) -> Path | None:
    """The file that this process has loaded under that name."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith(library):
            return path
    return None


with staying():
    import torch

    _torch: Any = torch
    _compile = _torch.compile
    if not torch.cuda.is_available():
        _torch.compile = _as_it_is
        leave_alone_from_the_start(torch.optim.Optimizer)
    elif importlib.util.find_spec(_ENGINE) is not None:
        share_torchs_cudnn()
    try:
        ENGINE_TROUBLE = _trouble_with_transformer_engine()
        with without("wandb", "torch.utils.tensorboard"):
            importlib.import_module("megatron.core.jit")  # from here on megatron-core's own decorator is this one
    finally:
        _torch.compile = _compile
