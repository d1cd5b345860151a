"""Lets megatron-core run where there is no CUDA, by answering its calls to torch.cuda with the CPU.

Active only when `install` is called, which device.py does only where CUDA is absent or refused. Everything that is
patched is listed here and nowhere else, and a test says of each patch that it is still needed.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

_CPU = torch.device("cpu")
FACTORIES = ("tensor", "zeros")
"""Functions of torch that megatron-core calls with a CUDA device."""


def install() -> None:
    """Patch torch. Call before any tensor is made; a process that trains one job after another calls it for each."""
    with torch.device("cpu"):
        # torch notes which functions make tensors when it is first asked for a device in this way: a model of
        # transformers that is loaded later in this process asks for `meta`, also of those that are wrapped below.
        torch.empty(0)
    cuda: Any = torch.cuda
    cuda.current_device = lambda: _CPU
    cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    # torch.manual_seed would note the stack each time, for a CUDA that is yet to begin.
    cuda.manual_seed = torch.default_generator.manual_seed
    # Asked for by megatron-core 0.19 alone: it names the stream of a gradient reduction, and uses it only to wait.
    cuda.current_stream = lambda *args, **kwargs: None
    for name in FACTORIES:
        wrap_once(torch, name, _on_cpu)
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *args, **kwargs: self
    wrap_once(tensor, "type", _cuda_type_name)
    # megatron-core's jit_fuser is torch.compile; on the CPU its first step takes 16 s and gains nothing. The compiler
    # reads the variable when it is imported, which where there is a GPU that is not to be used has happened by now.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    compiler: Any = sys.modules.get("torch._dynamo")
    if compiler is not None:
        compiler.config.disable = os.environ["TORCHDYNAMO_DISABLE"] == "1"


def wrap_once(owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put a wrapper around a function. In a process that trains one job after another it is not wrapped for each."""
    present = getattr(owner, name)
    if getattr(present, "wrapper", None) is not wrapper:
        wrapped: Any = wrapper(present)
        wrapped.wrapper = wrapper
        setattr(owner, name, wrapped)


def patch_megatron_random(random_module: Any) -> None:
    """Make megatron's RNG tracker keep the CPU generator's state."""
    random_module._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()
    random_module._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: torch.set_rng_state(state)


def patch_megatron_dispatcher(dispatcher: Any) -> None:
    """Make the all-to-all dispatcher of experts count on the host at once, where it would copy on a CUDA stream."""
    dispatcher.cuda_dtoh_stream = _CPU  # only asked whether there is one
    dispatcher._maybe_dtoh_and_synchronize = _counts_on_host


def _counts_on_host(dispatcher: Any, point: str, tokens_per_expert: Any = None) -> Any:
    """The numbers of tokens to send and to receive as arrays, which collectives take."""
    for name in ("input_splits", "output_splits", "output_splits_tp"):
        splits = getattr(dispatcher, name)
        if isinstance(splits, torch.Tensor):
            setattr(dispatcher, name, splits.numpy())
    return tokens_per_expert


def patch_megatron_mappings(mappings: Any) -> None:
    """Let tensor-parallel ranks gather unequal parts, which gloo refuses: padded to the longest. And reduce-scatter
    them, which it has from torch 2.8 on alone.
    """
    wrap_once(mappings, "_gather_along_first_dim", _gathered)
    wrap_once(mappings, "_reduce_scatter_along_first_dim", _reduced)


def patch_megatron_norms(clip_grads: Any, utils: Any) -> None:
    """Have gradients measured by torch: where Transformer Engine or apex is installed, megatron-core takes
    their kernels, which would read the CPU's memory from the GPU.
    """
    vars(clip_grads).update(
        multi_tensor_applier=utils.local_multi_tensor_applier,
        l2_norm_impl=utils.local_multi_tensor_l2_norm,
    )


def _gathered(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def gather(x: Any, group: Any, output_split_sizes: Any = None, use_global_buffer: bool = False) -> Any:
        if output_split_sizes is None or group.size() == 1:
            return original(x, group, output_split_sizes, use_global_buffer)
        longest = max(output_split_sizes)
        padded = torch.cat([x, x.new_zeros(longest - x.size(0), *x.shape[1:])])
        parts = [torch.empty_like(padded) for _ in output_split_sizes]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:size] for part, size in zip(parts, output_split_sizes, strict=True)])

    return gather


def _reduced(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reduce(x: Any, group: Any, input_split_sizes: Any = None, use_global_buffer: bool = False) -> Any:
        if input_split_sizes is None or group.size() == 1:
            return original(x, group, input_split_sizes, use_global_buffer)
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total.split(list(input_split_sizes))[group.rank()].contiguous()

    return reduce


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
            return f"torch.cuda.{original(self).removeprefix('torch.').removeprefix('cuda.')}"
        return original(self, dtype, *args, **kwargs)

    return type_
