"""How fast hosts start the kernels of layers: those with the same GPU differ by four times in it."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import nn

from orchestrator.planning.hardware.devices import Device as Planned
from orchestrator.runtime.processes.control import Control
from orchestrator.runtime.processes.device import Device

_LAYERS, _WIDTH = 16, 64
_WARM_UP, _ROUNDS = 2, 9
_STARTS = 650.0
"""What a round takes, in starts of a kernel as Efficiency.launch counts them. On the host that took 2.4 to 2.7 times as
long as planned for the kernels of 1.7B's layers it was 8.0 to 10.8 ms (docs/benchmarks/2026-11-25-h100.md).
"""


class _Product(torch.autograd.Function):
    """Written in Python, as much of a layer is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return gradients[0] * weight, gradients[0] * x


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: Any = _Product.apply
        added: torch.Tensor = x + product(self.linear(self.norm(x)), self.weight)
        return added


def slowest_start(device: Device, control: Control) -> float:
    """Seconds in which the slowest of the ranks' hosts starts a kernel; 0 on the CPU. Every rank must call this."""
    own = start_seconds(device.torch_device) if device.is_cuda else 0.0
    slowest: float = control.from_first(max(control.gather_to_first(own) or [own]))
    return slowest


def with_host(known: Planned, launch: float) -> Planned:
    """A GPU whose host starts a kernel in `launch` seconds, if that is longer than planned: what the plan chooses for
    a faster one stands.
    """
    return known.with_launch(max(known.efficiency.launch, launch))


def start_seconds(device: torch.device) -> float:
    """Seconds of the host to start one kernel of a layer on a GPU, as Efficiency.launch counts them: by passes through
    layers so small that the GPU is always done before the host is. Takes a tenth of a second.
    """
    with torch.random.fork_rng(devices=[]):
        network = nn.Sequential(*(_Layer() for _ in range(_LAYERS))).to(device, torch.bfloat16)
    x = torch.ones(_WIDTH, _WIDTH, device=device, dtype=torch.bfloat16)
    rounds = []
    for _ in range(_WARM_UP + _ROUNDS):
        torch.cuda.synchronize(device)
        started = time.perf_counter()
        network(x).backward(x)
        rounds.append(time.perf_counter() - started)
    torch.cuda.synchronize(device)
    return statistics.median(rounds[_WARM_UP:]) / _STARTS
