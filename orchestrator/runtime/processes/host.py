"""How fast hosts start the kernels of layers: those with the same GPU differ by four times in it."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from orchestrator.kernel_selection.machine import MEASURED_ON
from orchestrator.planning.hardware import shipped
from orchestrator.planning.hardware.fitted_constants import fitted_constants
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.rank_agreement import Control

_LAYERS, _WIDTH = 16, 64
_WARM_UP, _ROUNDS, _QUARTER = 2, 9, 2
"""Of so many rounds, from the shortest on, the one that counts: others are held up by what begins beside them."""


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
    """Seconds in which the slowest of the ranks' hosts starts a kernel; of GPUs for which nothing is chosen by it 0.
    Every rank must call this.
    """
    known = shipped(device.name) if device.is_cuda else None
    is_chosen_by_it = known is not None and known.generation == MEASURED_ON
    own = start_seconds(device.torch_device) if is_chosen_by_it else 0.0
    slowest: float = control.from_first(max(control.gather_to_first(own) or [own]))
    return slowest


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
    return sorted(rounds[_WARM_UP:])[_QUARTER] / fitted_constants().host.starts_of_round
