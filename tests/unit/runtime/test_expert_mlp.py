"""Experts in kernels of ours, whose sums torch computes here, beside megatron-core's own passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.transformer.moe.experts import TEGroupedMLP
from support.training import tiny_job
from torch.nn import functional

from orchestrator.kernel_selection.experts import LARGE_PRODUCT, Gate, joins_expert_mlp
from orchestrator.models.blocks.experts import memory
from orchestrator.models.blocks.mlp.layers import quick_gelu
from orchestrator.planning.memory.layer_activations import core_kernels, rank_shape
from orchestrator.runtime.layers.grouped_experts.expert_mlp import expert_products, join_expert_mlp
from orchestrator.spec.sections.launch import GROUPED_PRODUCTS
from tests.unit.runtime.conftest import PutKernels

HIDDEN, INNER = 6, 4
TOKENS = [3, 0, 5]
MIXTURE: dict[str, Any] = {"num_experts": 4, "activation": "swiglu", "add_bias_linear": False}
GATES = {"swiglu": Gate(1.0), "gpt_oss": Gate(1.702, limit=1.5, offset=1.0)}


class Products:
    """Of the kernels' module: rows of each expert, one after another."""

    @staticmethod
    def multiply(
        inputs: torch.Tensor,
        weights: list[torch.Tensor],
        tokens: list[int],
        *,
        transposed: bool,
        biases: list[torch.Tensor] | tuple[()] = (),
        shares: torch.Tensor | None = None,
    ) -> torch.Tensor:
        parts = zip(inputs.split(tokens), weights, strict=True)
        output = torch.cat([rows @ (weight.t() if transposed else weight) for rows, weight in parts])
        if biases:
            added = torch.cat([bias.expand(count, -1) for bias, count in zip(biases, tokens, strict=True)])
            output += added if shares is None else added * shares[:, None]
        return output

    @staticmethod
    def add_products(
        inputs: torch.Tensor, of_output: torch.Tensor, buffers: list[torch.Tensor], tokens: list[int], *, adds: bool
    ) -> None:
        assert adds
        for rows, of_rows, buffer in zip(inputs.split(tokens), of_output.split(tokens), buffers, strict=True):
            buffer += of_rows.t() @ rows


class Biases:
    """Of the kernels' module."""

    @staticmethod
    def add_biases(outputs: torch.Tensor, biases: list[torch.Tensor], tokens: list[int], shares: torch.Tensor) -> None:
        for rows, bias, by in zip(outputs.split(tokens), biases, shares.split(tokens), strict=True):
            rows += bias * by[:, None]

    @staticmethod
    def add_bias_gradients(
        of_output: torch.Tensor,
        buffers: list[torch.Tensor],
        tokens: list[int],
        *,
        adds: bool,
        shares: torch.Tensor | None = None,
    ) -> None:
        assert adds
        weighted = of_output if shares is None else of_output * shares[:, None]
        for rows, buffer in zip(weighted.split(tokens), buffers, strict=True):
            buffer += rows.sum(0)

    @staticmethod
    def add_share_gradients(
        of_output: torch.Tensor, biases: list[torch.Tensor], tokens: list[int], of_shares: torch.Tensor
    ) -> None:
        for rows, bias, of_rows in zip(of_output.split(tokens), biases, of_shares.split(tokens), strict=True):
            of_rows += rows @ bias


class Activation:
    """Of the kernels' module."""

    @staticmethod
    def weighted_gate(gated: torch.Tensor, weights: torch.Tensor, gate: Gate) -> torch.Tensor:
        x, up = gated.chunk(2, -1)
        if gate.limit is not None:
            x, up = x.clamp(max=gate.limit), up.clamp(-gate.limit, gate.limit)
        return x * torch.sigmoid(gate.slope * x) * (up + gate.offset) * weights[:, None]

    @classmethod
    def weighted_gate_gradient(
        cls, gradient: torch.Tensor, gated: torch.Tensor, weights: torch.Tensor, gate: Gate
    ) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            inputs = gated.detach().requires_grad_(), weights.detach().requires_grad_()
            return torch.autograd.grad(cls.weighted_gate(*inputs, gate), inputs, gradient)


class Linear(torch.nn.Module):
    """Each expert's matrix, and bias, as Transformer Engine names them; multiplies as megatron-core has it do."""

    def __init__(self, outputs: int, inputs: int, *, bias: bool, apart: bool) -> None:
        super().__init__()
        self.bias, self.apart = bias, apart
        for index in range(len(TOKENS)):
            self.register_parameter(f"weight{index}", torch.nn.Parameter(torch.randn(outputs, inputs)))
            if bias:
                self.register_parameter(f"bias{index}", torch.nn.Parameter(torch.randn(outputs)))

    def forward(self, rows: torch.Tensor, tokens: list[int]) -> tuple[torch.Tensor, list[torch.Tensor] | None]:
        weights, biases = (
            [getattr(self, f"{kind}{index}") for index in range(len(TOKENS)) if hasattr(self, f"{kind}0")]
            for kind in ("weight", "bias")
        )
        adds = biases and not self.apart
        parts = enumerate(rows.split(tokens))
        output = torch.cat([each @ weights[i].t() + (biases[i] if adds else 0) for i, each in parts])
        return output, biases if self.bias and self.apart else None


def grouped_mlp(*, gpt_oss: bool) -> Any:
    """megatron-core's module of a model's experts, which computes as it does by itself."""
    torch.manual_seed(1)
    gate = GATES["gpt_oss" if gpt_oss else "swiglu"]
    module: Any = TEGroupedMLP.__new__(TEGroupedMLP)
    torch.nn.Module.__init__(module)
    module.config = SimpleNamespace(
        **dict.fromkeys(("fp8", "fp4", "moe_apply_probs_on_input", "use_te_activation_func"), False),
        bias_activation_fusion=False,
        use_fused_weighted_squared_relu=False,
        gated_linear_unit=True,
        activation_func=quick_gelu if gpt_oss else functional.silu,
        activation_func_clamp_value=gate.limit,
        glu_linear_offset=gate.offset,
    )
    module.activation_func = module.config.activation_func
    module.offload_expert_fc1 = module.offload_moe_act = module.activation_recompute = False
    module.num_local_experts = len(TOKENS)
    module.linear_fc1 = Linear(2 * INNER, HIDDEN, bias=gpt_oss, apart=False)
    module.linear_fc2 = Linear(HIDDEN, INNER, bias=gpt_oss, apart=True)
    return module


@pytest.fixture
def kernel_stand_ins(put_kernels: PutKernels) -> None:
    put_kernels("grouped_products", Products())
    put_kernels("weighted_gate", Activation())
    put_kernels("expert_biases", Biases())


@pytest.fixture
def experts(kernel_stand_ins: None) -> Any:
    module = grouped_mlp(gpt_oss=False)
    join_expert_mlp(module, GATES["swiglu"], has_biases=False)
    return module


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("gpt_oss", [False, True])
def test_joined_experts_are_those_of_megatron(gpt_oss: bool, large: bool, kernel_stand_ins: None) -> None:
    """Outputs and all gradients: with biases, of which the second is weighted as the router weighted its token."""
    plain, joined = grouped_mlp(gpt_oss=gpt_oss), grouped_mlp(gpt_oss=gpt_oss)
    gate, least = GATES["gpt_oss" if gpt_oss else "swiglu"], 0 if large else LARGE_PRODUCT
    join_expert_mlp(joined, gate, has_biases=gpt_oss, large=least)
    for parameter in joined.parameters():
        parameter.main_grad = torch.ones_like(parameter)
    hidden, share = torch.randn(sum(TOKENS), HIDDEN), torch.rand(sum(TOKENS))
    gradient = torch.randn(sum(TOKENS), HIDDEN)
    results = []
    for module in (plain, joined):
        inputs = hidden.clone().requires_grad_(), share.clone().requires_grad_()
        output, bias = module(inputs[0], torch.tensor(TOKENS), inputs[1])
        assert bias is None
        output.backward(gradient)
        results.append((output.detach(), *(each.grad for each in inputs)))
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)
    for exact, found in zip(plain.parameters(), joined.parameters(), strict=True):
        torch.testing.assert_close(found.main_grad, exact.grad + 1)
        assert found.grad_added_to_main_grad


@pytest.mark.parametrize(("large", "by_kernels"), [(129, (4, 2)), (64, (0, 2)), (8, (0, 0))])
def test_large_products_are_no_kernels_work(
    large: int, by_kernels: tuple[int, int], put_kernels: PutKernels, kernel_stand_ins: None
) -> None:
    """An expert has 128 multiply-adds in the first product on average, and 64 in the second: forward, for the gradient
    of its tokens, and for that of its weights, which the kernels keep up to eight times as large.
    """
    called: list[str] = []

    class Counted:
        def __getattr__(self, name: str) -> Any:
            called.append(name)
            return getattr(Products, name)

    put_kernels("grouped_products", Counted())
    module = grouped_mlp(gpt_oss=False)
    join_expert_mlp(module, GATES["swiglu"], has_biases=False, large=large)
    for parameter in module.parameters():
        parameter.main_grad = torch.zeros_like(parameter)
    hidden = torch.randn(sum(TOKENS), HIDDEN, requires_grad=True)
    output, _ = module(hidden, torch.tensor(TOKENS), torch.rand(sum(TOKENS)))
    output.sum().backward()
    assert (called.count("multiply"), called.count("add_products")) == by_kernels


def test_weights_are_gathered_before_they_are_read(experts: Any) -> None:
    """megatron-core gathers what other ranks have updated in a hook of the layer whose weights they are."""
    hidden, share = torch.randn(sum(TOKENS), HIDDEN), torch.rand(sum(TOKENS))
    wanted, _ = experts(hidden, torch.tensor(TOKENS), share)
    for linear in (experts.linear_fc1, experts.linear_fc2):
        updated = [weight.detach().clone() for weight in linear.parameters()]

        def gather(module: Any, inputs: Any, updated: list[torch.Tensor] = updated) -> None:
            for weight, value in zip(module.parameters(), updated, strict=True):
                weight.data.copy_(value)

        linear.register_forward_pre_hook(gather)
        for weight in linear.parameters():
            weight.data.zero_()
    found, _ = experts(hidden, torch.tensor(TOKENS), share)
    torch.testing.assert_close(found, wanted)


class Scaled(Linear):
    """With what Transformer Engine saves of FP8: nothing before it multiplies in it, or has loaded some."""

    scales = torch.empty(0)

    def get_extra_state(self) -> torch.Tensor:
        return self.scales

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.scales = state


def test_scaling_factors_of_a_checkpoint_are_passed_over(kernel_stand_ins: None) -> None:
    """Of a run whose experts were in FP8. Saved again, they would be old when a later one takes them up."""
    module = grouped_mlp(gpt_oss=False)
    module.linear_fc1 = Scaled(2 * INNER, HIDDEN, bias=False, apart=False)
    saved = {**module.linear_fc1.state_dict(), "_extra_state": torch.ones(3)}
    module.linear_fc1.load_state_dict(saved)
    assert module.linear_fc1.state_dict()["_extra_state"].numel() == 3
    module.linear_fc1 = Scaled(2 * INNER, HIDDEN, bias=False, apart=False)
    join_expert_mlp(module, GATES["swiglu"], has_biases=False)
    module.linear_fc1.load_state_dict(saved)
    assert module.linear_fc1.state_dict()["_extra_state"].numel() == 0
    torch.testing.assert_close(module.linear_fc1.weight2, saved["weight2"])


@pytest.mark.parametrize("gpt_oss", [False, True])
def test_their_plan_counts_what_they_keep(gpt_oss: bool, kernel_stand_ins: None) -> None:
    """Beside the tokens what goes into the gate, twice as wide as what comes from it, and that; of the plan the rest is
    the router's.
    """
    kept: list[int] = []
    joined = grouped_mlp(gpt_oss=gpt_oss)
    join_expert_mlp(joined, GATES["gpt_oss" if gpt_oss else "swiglu"], has_biases=gpt_oss)
    hidden, share = (torch.randn(sum(TOKENS), *width, requires_grad=True) for width in ((HIDDEN,), ()))
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each.numel()), lambda each: each):
        joined(hidden, torch.tensor(TOKENS), share)
    assert sum(kept) == sum(TOKENS) * (HIDDEN + 3 * INNER + 1)

    model = {**MIXTURE, **({"activation": "quick_geglu", "add_bias_linear": True} if gpt_oss else {})}
    job = tiny_job("mixture", model=model, precision={"dtype": "bf16"}, runtime={"device": "auto"})
    sizes, kernels = rank_shape(job), core_kernels(job, "transformer_engine", is_recomputed=False)
    assert kernels.joins_experts
    rows = sizes.own_tokens * job.model.moe_router_topk
    router = memory.saved(job.model, sizes, kernels) - rows * sizes.width * (sizes.hidden + 3 * job.model.moe_ffn_size)
    assert 0 < router <= sizes.own_tokens * 24 * 4 + 8 * rows


@pytest.mark.parametrize(
    ("sections", "joined"),
    [
        ({}, True),
        ({"precision": {"dtype": "fp16"}}, True),
        ({"precision": {"dtype": "fp32"}}, False),
        ({"precision": {"dtype": "bf16", "fp8": {}}}, True),
        ({"precision": {"dtype": "bf16", "fp8": {"recipe": "mxfp8"}}}, False),
        ({"precision": {"dtype": "bf16", "fp8": {}}, "model": {**MIXTURE, "moe_ffn_hidden_size": 1 << 30}}, False),
        ({"model": {**MIXTURE, "activation": "geglu"}}, True),
        ({"model": {**MIXTURE, "activation": "quick_geglu", "add_bias_linear": True}}, True),
        ({"model": {**MIXTURE, "activation": "geglu_exact"}}, False),
        ({"model": {**MIXTURE, "activation": "gelu"}}, False),
        ({"model": {**MIXTURE, "moe_grouped_gemm": False}}, False),
    ],
)
def test_which_experts_are_joined(sections: dict[str, Any], joined: bool) -> None:
    job = tiny_job("mixture", **{"model": MIXTURE, "precision": {"dtype": "bf16"}, **sections})
    assert joins_expert_mlp(job, "transformer_engine") is joined
    assert not joins_expert_mlp(job, "torch")


@pytest.mark.parametrize(
    ("sections", "fuses", "switch", "said"),
    [
        ({}, True, None, "bf16"),
        ({}, False, None, "fp8"),
        ({}, True, "0", "fp8"),
        ({"precision": {"dtype": "bf16", "fp8": {"recipe": "mxfp8"}}}, True, None, "mxfp8"),
        ({"precision": {"dtype": "bf16"}}, False, None, "bf16"),
        ({"model": {}}, True, None, None),
    ],
)
def test_what_a_run_says_of_their_format(
    sections: dict[str, Any], fuses: bool, switch: str | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GROUPED_PRODUCTS, switch or "1")
    job = tiny_job("mixture", **{"model": MIXTURE, "precision": {"dtype": "bf16", "fp8": {}}, **sections})
    config: Any = SimpleNamespace(gradient_accumulation_fusion=fuses)
    assert expert_products(job, config, "transformer_engine") == said
