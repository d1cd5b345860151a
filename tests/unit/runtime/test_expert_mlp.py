"""Experts in kernels of ours, whose sums torch computes here: outputs and gradients of each expert by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.training import tiny_job
from torch.nn import functional

from orchestrator.kernel_selection.experts import joins_expert_mlp
from orchestrator.runtime.layers.grouped_experts.expert_mlp import ExpertMLP
from tests.unit.runtime.conftest import PutKernels

HIDDEN, INNER = 6, 4
TOKENS = [3, 0, 5]
MIXTURE: dict[str, Any] = {"num_experts": 4, "activation": "swiglu", "add_bias_linear": False}


class Products:
    """Of the kernels' module: rows of each expert, one after another."""

    @staticmethod
    def multiply(
        inputs: torch.Tensor, weights: list[torch.Tensor], tokens: list[int], *, transposed: bool
    ) -> torch.Tensor:
        parts = zip(inputs.split(tokens), weights, strict=True)
        return torch.cat([rows @ (weight.t() if transposed else weight) for rows, weight in parts])

    @staticmethod
    def add_products(
        inputs: torch.Tensor, of_output: torch.Tensor, buffers: list[torch.Tensor], tokens: list[int], **how: bool
    ) -> None:
        assert how == {"adds": True, "with_bias": False}
        for rows, of_rows, buffer in zip(inputs.split(tokens), of_output.split(tokens), buffers, strict=True):
            buffer += of_rows.t() @ rows


class Activation:
    """Of the kernels' module."""

    @staticmethod
    def weighted_swiglu(gated: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        gate, up = gated.chunk(2, -1)
        return functional.silu(gate) * up * weights[:, None]

    @classmethod
    def weighted_swiglu_gradient(
        cls, gradient: torch.Tensor, gated: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            inputs = gated.detach().requires_grad_(), weights.detach().requires_grad_()
            return torch.autograd.grad(cls.weighted_swiglu(*inputs), inputs, gradient)


@pytest.fixture
def experts(put_kernels: PutKernels) -> Any:
    """What ExpertMLP reads of megatron-core's module."""
    put_kernels("grouped_products", Products())
    put_kernels("weighted_swiglu", Activation())
    torch.manual_seed(1)
    linears = [
        SimpleNamespace(**{f"weight{index}": torch.nn.Parameter(torch.randn(shape)) for index in range(len(TOKENS))})
        for shape in ((2 * INNER, HIDDEN), (HIDDEN, INNER))
    ]
    return SimpleNamespace(num_local_experts=len(TOKENS), linear_fc1=linears[0], linear_fc2=linears[1])


def test_each_expert_has_its_own_tokens(experts: Any) -> None:
    weights_in, weights_out = (list(vars(linear).values()) for linear in (experts.linear_fc1, experts.linear_fc2))
    hidden, share = torch.randn(sum(TOKENS), HIDDEN), torch.rand(sum(TOKENS))
    plain = [each.detach().requires_grad_() for each in (hidden, share, *weights_in, *weights_out)]
    parts = zip(plain[0].split(TOKENS), plain[1].split(TOKENS), plain[2:5], plain[5:], strict=True)
    wanted = torch.cat([Activation.weighted_swiglu(rows @ one.t(), of) @ two.t() for rows, of, one, two in parts])
    gradient = torch.randn_like(wanted)
    wanted.backward(gradient)

    for weight in (*weights_in, *weights_out):
        weight.main_grad = torch.ones_like(weight)
    hidden.requires_grad_(), share.requires_grad_()
    found, bias = ExpertMLP(experts)(hidden, torch.tensor(TOKENS), share)
    found.backward(gradient)
    assert bias is None
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(hidden.grad, plain[0].grad)
    torch.testing.assert_close(share.grad, plain[1].grad)
    for weight, exact in zip((*weights_in, *weights_out), plain[2:], strict=True):
        assert exact.grad is not None
        torch.testing.assert_close(weight.main_grad, exact.grad + 1)
        assert weight.grad_added_to_main_grad


@pytest.mark.parametrize(
    ("sections", "joined"),
    [
        ({}, True),
        ({"precision": {"dtype": "fp16"}}, True),
        ({"precision": {"dtype": "fp32"}}, False),
        ({"precision": {"dtype": "bf16", "fp8": {}}}, False),
        ({"model": {**MIXTURE, "activation": "geglu"}}, False),
        ({"model": {**MIXTURE, "add_bias_linear": True}}, False),
        ({"model": {**MIXTURE, "moe_grouped_gemm": False}}, False),
    ],
)
def test_which_experts_are_joined(sections: dict[str, Any], joined: bool) -> None:
    job = tiny_job("mixture", **{"model": MIXTURE, "precision": {"dtype": "bf16"}, **sections})
    assert joins_expert_mlp(job, "transformer_engine") is joined
    assert not joins_expert_mlp(job, "torch")
