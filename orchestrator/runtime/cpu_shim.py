"""Lets megatron-core run where there is no CUDA, by answering its calls to torch.cuda with the CPU.

Active only when `install` is called, which device.py does only where CUDA is absent or refused. Everything that is
patched is listed here and nowhere else.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

_CPU = torch.device("cpu")

_FACTORIES = [
    "empty",
    "zeros",
    "ones",
    "full",
    "tensor",
    "as_tensor",
    "arange",
    "rand",
    "randn",
    "randint",
    "randperm",
    "linspace",
    "eye",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "empty_strided",
    "tril_indices",
    "triu_indices",
]
_TENSOR_FACTORIES = ["new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"]
_TENSOR_TYPES = ["Float", "Half", "BFloat16", "Int", "Long", "Byte", "Double"]


class _Stream:
    """A CUDA stream that does nothing: on the CPU every operation has ended when its call returns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_stream(self, *args: Any) -> None: ...

    def wait_event(self, *args: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, *args: Any) -> _Event:
        return _Event()


class _Event:
    """A CUDA event that has always happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, *args: Any) -> None: ...

    def wait(self, *args: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


@contextlib.contextmanager
def _stream_context(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return (isinstance(device, str) and device.startswith("cuda")) or type(device) is int


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    """The factory with a CUDA `device` replaced and `pin_memory` dropped."""

    @functools.wraps(factory)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = _CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return wrapped


def _to_cpu(method: Callable[..., Any]) -> Callable[..., Any]:
    """`.to` with a CUDA device replaced."""

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and _is_cuda(args[0]):
            args = (_CPU, *args[1:])
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = _CPU
        return method(self, *args, **kwargs)

    return wrapped


def _identity(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _cuda_type_name(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.type()` that answers torch.cuda.*: megatron-core's optimizers compare it with those names."""

    def type_(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            return original(self).replace("torch.", "torch.cuda.") if not self.is_meta else original(self)
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.")
        return original(self, dtype, *args, **kwargs)

    return type_


def install() -> None:
    """Patch torch. Call once, before any tensor is made."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: _CPU
    cuda.device_count = lambda: 0
    for name in ("synchronize", "set_device", "empty_cache", "reset_peak_memory_stats"):
        setattr(cuda, name, _nothing)
    cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    cuda.random.get_rng_state = cuda.get_rng_state
    cuda.random.set_rng_state = cuda.set_rng_state
    cuda.manual_seed = torch.manual_seed
    # torch.manual_seed calls manual_seed_all, so that one must not call back.
    cuda.manual_seed_all = _nothing
    cuda.current_stream = lambda *args, **kwargs: _Stream()
    cuda.Stream = _Stream
    cuda.Event = _Event
    cuda.stream = _stream_context
    cuda.nvtx.range_push = _nothing
    cuda.nvtx.range_pop = _nothing
    for name in _TENSOR_TYPES:
        setattr(cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
    tensor: Any = torch.Tensor
    module: Any = torch.nn.Module
    tensor.cuda = _identity
    module.cuda = _identity
    tensor.type = _cuda_type_name(tensor.type)
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    for name in _TENSOR_FACTORIES:
        setattr(tensor, name, _on_cpu(getattr(tensor, name)))
    tensor.to = _to_cpu(tensor.to)
    module.to = _to_cpu(module.to)
    # megatron-core's jit_fuser is torch.compile; on the CPU its first step takes 16 s and gains nothing.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


def patch_megatron_random(random_module: Any) -> None:
    """Make megatron's RNG tracker keep the CPU generator's state."""
    random_module._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()
    random_module._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: torch.set_rng_state(state)
