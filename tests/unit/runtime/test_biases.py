"""Biases of MLPs, and of experts that are computed one after another."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.moe.experts import SequentialMLP

from orchestrator.runtime.layers.biases import add_behind_experts, add_in_products


class Linear(torch.nn.Module):
    """Gives its bias apart, as megatron-core's do."""

    def __init__(self, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return 2 * rows, self.bias


class Expert(torch.nn.Module):
    def __init__(self, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.linear_fc2 = Linear(bias)

    def forward(self, rows: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        output, bias = self.linear_fc2(rows)
        return output * weights.unsqueeze(-1), bias


@pytest.mark.parametrize(
    ("bias", "added"), [(None, 0.0), (torch.empty(0), 0.0), (torch.full((3,), 5.0), 5.0)], ids=["none", "empty", "bias"]
)
def test_biases_are_weighted_as_outputs_are(bias: torch.Tensor | None, added: float) -> None:
    """Transformer Engine's linear without a bias has an empty tensor for one."""
    experts = SequentialMLP.__new__(SequentialMLP)
    torch.nn.Module.__init__(experts)
    experts.local_experts = torch.nn.ModuleList([Expert(bias)])
    add_behind_experts(experts)
    rows, weights = torch.ones(2, 3), torch.tensor([0.5, 0.25])
    output, apart = experts.local_experts[0](rows, weights)
    assert apart is None or not apart.numel()
    torch.testing.assert_close(output, (2 * rows + added) * weights.unsqueeze(-1))


@pytest.mark.parametrize("has_kernel", [False, True])
def test_products_add_biases_that_no_kernel_takes(has_kernel: bool) -> None:
    """Each MLP by its own configuration: an encoder of images has another than its decoder."""
    mlp = MLP.__new__(MLP)
    torch.nn.Module.__init__(mlp)
    mlp.config = SimpleNamespace(bias_activation_fusion=has_kernel)
    mlp.linear_fc1 = Linear(torch.ones(3))
    vars(mlp.linear_fc1).update(te_return_bias=True, return_bias=True, apply_bias=False)
    add_in_products(torch.nn.ModuleList([mlp]))
    assert mlp.linear_fc1.te_return_bias is has_kernel
    assert mlp.linear_fc1.apply_bias is not has_kernel
