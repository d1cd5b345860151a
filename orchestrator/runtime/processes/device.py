"""Which device this process computes on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch

from orchestrator.errors import OrchestratorError, UserError
from orchestrator.runtime.processes import cpu_shim

_BACKEND: Any = torch.backends.cuda  # has no types
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""What people tell torch's allocator by: since torch 2.9, before, and on AMD's GPUs."""


class GpuMissingError(OrchestratorError):
    """A machine shows fewer GPUs than it gave this job."""

    code = "missing_gpu"


@dataclass(frozen=True)
class Device:
    """The device of this rank and the communication backend that goes with it."""

    kind: Literal["cuda", "cpu"]
    torch_device: torch.device
    backend: Literal["nccl", "gloo"]
    name: str

    @property
    def is_cuda(self) -> bool:
        return self.kind == "cuda"


def select_device(choice: Literal["auto", "cuda", "cpu"], threads: int | None = None) -> Device:
    """The device for `runtime.device`; on the CPU this installs the shim.

    Raises UserError when there is no CUDA device for this process though the spec asks for one, and GpuMissingError
    when SLURM gave it one that torch does not see: `auto` is not to train on the CPU there.
    """
    available = torch.cuda.is_available()
    if choice != "cpu":
        _refuse_missing_gpus(torch.cuda.device_count() if available else 0)
    if choice == "cuda" and not available:
        raise UserError("runtime.device is cuda, but torch sees no CUDA device here; use auto or cpu", code="no_gpu")
    if threads is not None:
        torch.set_num_threads(threads)
    if available and choice != "cpu":
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if local_rank >= torch.cuda.device_count():
            raise UserError(
                f"local rank {local_rank} has no GPU: this machine shows {torch.cuda.device_count()}, "
                "one is needed for each process",
                code="too_few_gpus",
            )
        torch.cuda.set_device(local_rank)
        device = torch.device("cuda", local_rank)
        return Device("cuda", device, "nccl", torch.cuda.get_device_name(device))
    cpu_shim.install()
    return Device("cpu", torch.device("cpu"), "gloo", "cpu")


def grow_in_place(device: Device) -> None:
    """Have torch's allocator extend what it holds, in place of taking blocks of fixed sizes whose rests are of no use:
    of 79 GiB up to 6 were such rests (docs/benchmarks/accuracy.md). What the environment says goes before.

    Call this before anything is on the GPU: some drivers refuse, WSL's and those of shared GPUs.
    """
    if not device.is_cuda or any(name in os.environ for name in _ALLOCATOR):
        return
    _tell_allocator("expandable_segments:True")
    try:
        torch.empty(1, device=device.torch_device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as refusal:
        _tell_allocator("expandable_segments:False")
        why = str(refusal).partition("\n")[0]
        print(f"GPU memory is allocated in blocks of fixed size: this driver cannot extend them ({why})", flush=True)


def _tell_allocator(setting: str) -> None:
    bindings, memory = cast("Any", torch._C), cast("Any", torch.cuda.memory)
    newer = getattr(bindings, "_accelerator_setAllocatorSettings", None)
    (newer or memory._set_allocator_settings)(setting)


def _refuse_missing_gpus(seen: int) -> None:
    given = os.environ.get("SLURM_GPUS_ON_NODE", "")
    if not given.isdigit() or not _BACKEND.is_built():
        return
    if seen < int(given) and seen <= int(os.environ.get("LOCAL_RANK", "0")):
        raise GpuMissingError(
            f"SLURM gave this job {given} GPUs on {platform.node()}, but torch sees {seen}: a GPU or its driver is "
            "broken (nvidia-smi, dmesg), or CUDA_VISIBLE_DEVICES hides it"
        )
