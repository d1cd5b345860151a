"""Which device this process computes on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import torch

from orchestrator.errors import UserError
from orchestrator.runtime.processes import cpu_shim


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

    Raises UserError when there is no CUDA device for this process though the spec asks for one.
    """
    available = torch.cuda.is_available()
    if choice == "cuda" and not available:
        raise UserError("runtime.device is cuda, but torch sees no CUDA device here; use auto or cpu")
    if threads is not None:
        torch.set_num_threads(threads)
    if available and choice != "cpu":
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if local_rank >= torch.cuda.device_count():
            raise UserError(
                f"local rank {local_rank} has no GPU: this machine shows {torch.cuda.device_count()}, "
                "one is needed for each process"
            )
        torch.cuda.set_device(local_rank)
        device = torch.device("cuda", local_rank)
        return Device("cuda", device, "nccl", torch.cuda.get_device_name(device))
    cpu_shim.install()
    return Device("cpu", torch.device("cpu"), "gloo", "cpu")
