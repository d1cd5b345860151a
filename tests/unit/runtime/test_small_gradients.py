"""Gradients that wait for the end of a backward pass, by torch alone."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from orchestrator.runtime.network.small_gradients import add_together


class Shared(torch.nn.Module):
    """A bias that two recomputed layers share, and one behind them, with buffers as data parallelism gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (torch.nn.Parameter(torch.full((3,), value)) for value in (2.0, 5.0))
        self.matrix = torch.nn.Parameter(torch.ones(3, 3))
        for each in self.parameters():
            buffered: Any = each
            buffered.main_grad, buffered.grad_added_to_main_grad = torch.zeros_like(each), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        recomputed: Any = checkpoint  # it has no types
        for _ in range(2):
            x = recomputed(self._scaled, x, use_reentrant=True)
        return (x * self.last @ self.matrix).sum()

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.first


def test_gradients_of_passes_inside_a_pass_are_added_each() -> None:
    module = Shared()
    add_together([module])
    x = torch.ones(1, 3, requires_grad=True)
    for times in (1, 2):
        module(x).backward()
        assert found(module.first) == [times * 2 * 2.0 * 5 * 3] * 3
        assert found(module.last) == [times * 4.0 * 3] * 3
        assert module.first.grad is module.last.grad is None
        assert module.matrix.grad is not None, "megatron-core adds it"


def found(parameter: Any) -> list[float]:
    """What its buffer has."""
    values: list[float] = parameter.main_grad.tolist()
    return values


def test_what_a_product_has_added_is_left_alone() -> None:
    module = Shared()
    add_together([module])
    added: Any = module.last
    added.grad_added_to_main_grad = True
    module(torch.ones(1, 3, requires_grad=True)).backward()
    assert found(module.last) == [0.0] * 3
    assert module.last.grad is not None
