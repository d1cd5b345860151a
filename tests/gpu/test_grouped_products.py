"""Transformer Engine's products of all experts in one kernel: values and gradients of each expert by itself, also where
an expert gets no token, or an odd number of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.measured import needs_layers
from support.training import four_layer_job

from orchestrator.kernel_selection.experts import GROUPED_PRODUCTS
from orchestrator.runtime.layers.experts import multiply_in_one_kernel
from orchestrator.spec.job import JobSpec

pytestmark = pytest.mark.gpu

INPUTS, OUTPUTS = 256, 384
JOB = four_layer_job("experts", model={"num_experts": 4, "activation": "swiglu", "add_bias_linear": False})
SPLITS = {
    "even": [128, 128, 128, 128],
    "odd": [1, 37, 501, 8],
    "idle": [0, 96, 0, 33],
    "none": [0, 0, 0, 0],
}
LIMIT = 5e-3
"""Of the norm of the difference to that of the value in fp32; bf16 rounds to 2e-3."""


def jobs(text: str) -> list[JobSpec]:
    """This file trains nothing."""
    return []


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    found, wanted = found.detach().float(), wanted.detach()
    return float((found - wanted).norm() / wanted.norm().clamp(min=1e-6))


@pytest.mark.parametrize("together", ["0", "1"])
@pytest.mark.parametrize("splits", SPLITS.values(), ids=SPLITS)
def test_each_expert(splits: list[int], together: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_layers("transformer_engine")
    from transformer_engine.pytorch import GroupedLinear

    monkeypatch.setenv(GROUPED_PRODUCTS, together)
    multiply_in_one_kernel(JOB, "transformer_engine")
    torch.manual_seed(1)
    layer: Any = GroupedLinear(len(splits), INPUTS, OUTPUTS, bias=False, params_dtype=torch.bfloat16, device="cuda")
    weights = [getattr(layer, f"weight{index}") for index in range(len(splits))]
    tokens = torch.randn(sum(splits), INPUTS, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn(sum(splits), OUTPUTS, device="cuda", dtype=torch.bfloat16)
    output = layer(tokens, splits)
    output.backward(gradient)
    assert tokens.grad is not None
    parts = zip(weights, tokens.detach().split(splits), gradient.split(splits), strict=True)
    products = [(rows.float() @ weight.float().t(), of.float() @ weight.float()) for weight, rows, of in parts]
    assert relative(output, torch.cat([product for product, _ in products])) < LIMIT
    assert relative(tokens.grad, torch.cat([of_rows for _, of_rows in products])) < LIMIT
    for weight, rows, of in zip(weights, tokens.detach().split(splits), gradient.split(splits), strict=True):
        assert relative(weight.grad, of.float().t() @ rows.float()) < LIMIT
