"""Lets megatron-core run where there is no CUDA, by answering its calls to torch.cuda with the CPU.

Active only when `install` is called, which device.py does only where CUDA is absent or refused. Everything that is
patched is listed here and nowhere else, and a test says of each patch that it is still needed.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

_CPU = torch.device("cpu")
FACTORIES = ("tensor", "zeros")
"""Functions of torch that megatron-core calls with a CUDA device."""


def install() -> None:
    """Patch torch. Call once, before any tensor is made."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: _CPU
    cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cuda.manual_seed = torch.manual_seed
    # Asked for by megatron-core 0.19 alone: it names the stream of a gradient reduction, and uses it only to wait.
    cuda.current_stream = lambda *args, **kwargs: None
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *args, **kwargs: self
    tensor.type = _cuda_type_name(tensor.type)
    # megatron-core's jit_fuser is torch.compile; on the CPU its first step takes 16 s and gains nothing.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


def patch_megatron_random(random_module: Any) -> None:
    """Make megatron's RNG tracker keep the CPU generator's state."""
    random_module._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()
    random_module._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: torch.set_rng_state(state)


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    """The factory with a CUDA `device` replaced, and without memory that is pinned for copies to one."""

    @functools.wraps(factory)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = _CPU
        return factory(*args, **kwargs)

    return wrapped


def _cuda_type_name(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.type()` that answers torch.cuda.*: megatron-core's optimizers compare it with those names."""

    def type_(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            return original(self).replace("torch.", "torch.cuda.")
        return original(self, dtype, *args, **kwargs)

    return type_
