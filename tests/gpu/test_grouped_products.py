"""Products of all experts in one kernel, Transformer Engine's and ours: values and gradients of each expert by itself,
also where an expert gets no token, or an odd number of them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.measured import needs_gpus, needs_layers
from support.training import four_layer_job

from orchestrator.kernel_selection.experts import gate_of
from orchestrator.runtime.layers.grouped_experts.transformer_engine_products import multiply_in_one_kernel
from orchestrator.runtime.layers.weight_gradient import accumulate
from orchestrator.runtime.triton_kernels.loading import kernels
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.launch import GROUPED_PRODUCTS

pytestmark = pytest.mark.gpu

INPUTS, OUTPUTS = 256, 384
IN_BF16: Any = {"device": "cuda", "dtype": torch.bfloat16}
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(INPUTS, OUTPUTS), (264, 1000)])
@pytest.mark.parametrize("tiling", ["WIDE", "TALL", "SMALL"])
@pytest.mark.parametrize("splits", SPLITS.values(), ids=SPLITS)
def test_weight_gradients(
    splits: list[int], tiling: str, inputs: int, outputs: int, adds: bool, dtype: torch.dtype
) -> None:
    """Each expert's buffer gets its own sum, and nothing behind it is touched."""
    needs_gpus(1, "torch")
    kernel = kernels("grouped_products", "this test")
    torch.manual_seed(1)
    tokens, of_output = (torch.randn(sum(splits), width, **IN_BF16) for width in (inputs, outputs))
    storage = torch.randn(len(splits) * (outputs * inputs + 8), device="cuda").to(dtype)
    before = storage.clone()
    buffers, earlier = (
        [each[: outputs * inputs].view(outputs, inputs) for each in whole.chunk(len(splits))]
        for whole in (storage, before)
    )
    kernel.add_products(tokens, of_output, buffers, splits, adds=adds, tiling=getattr(kernel, tiling))
    for buffer, old, rows, of in zip(buffers, earlier, tokens.split(splits), of_output.split(splits), strict=True):
        wanted = of.float().t() @ rows.float() + (old.float() if adds else 0)
        assert relative(buffer, wanted) < LIMIT
    for whole, old in zip(storage.chunk(len(splits)), before.chunk(len(splits)), strict=True):
        assert torch.equal(whole[-8:], old[-8:])


@pytest.mark.parametrize("tiling", ["WIDE", "TALL", "SMALL"])
@pytest.mark.parametrize(("inputs", "outputs"), [(INPUTS, OUTPUTS), (264, 1000)])
@pytest.mark.parametrize("splits", SPLITS.values(), ids=SPLITS)
def test_outputs_and_gradients_of_tokens(splits: list[int], tiling: str, inputs: int, outputs: int) -> None:
    """Each expert's rows are multiplied by its own weight, and by its transpose."""
    needs_gpus(1, "torch")
    kernel = kernels("grouped_products", "this test")
    torch.manual_seed(1)
    weights = [torch.randn(outputs, inputs, **IN_BF16) for _ in splits]
    for width, transposed in ((inputs, True), (outputs, False)):
        rows = torch.randn(sum(splits), width, **IN_BF16)
        found = kernel.multiply(rows, weights, splits, transposed=transposed, tiling=getattr(kernel, tiling))
        parts = zip(rows.split(splits), weights, strict=True)
        wanted = [each.float() @ (weight.t() if transposed else weight).float() for each, weight in parts]
        assert relative(found, torch.cat(wanted)) < LIMIT


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("splits", SPLITS.values(), ids=SPLITS)
def test_biases(splits: list[int], weighted: bool) -> None:
    """Each expert's is added to its own rows, as they are weighted; their gradients, and those of the weights."""
    needs_gpus(1, "torch")
    products, biased = kernels("grouped_products", "this test"), kernels("expert_biases", "this test")
    torch.manual_seed(1)
    inputs, outputs, count = 264, 1000, sum(splits)
    rows, gradient = torch.randn(count, inputs, **IN_BF16), torch.randn(count, outputs, **IN_BF16)
    weights = [torch.randn(outputs, inputs, **IN_BF16) for _ in splits]
    biases = [torch.randn(outputs, **IN_BF16) for _ in splits]
    shares = torch.rand(count, device="cuda") if weighted else None
    found = products.multiply(rows, weights, splits, transposed=True, biases=biases, shares=shares)

    if shares is not None:
        apart = products.multiply(rows, weights, splits, transposed=True)
        biased.add_biases(apart, biases, splits, shares)
        assert relative(apart, found.float()) < LIMIT

    exact = [bias.float().requires_grad_() for bias in biases]
    share = torch.ones(count, device="cuda") if shares is None else shares.clone()
    parts = zip(rows.split(splits), weights, exact, share.requires_grad_().split(splits), strict=True)
    wanted = torch.cat([each.float() @ weight.float().t() + bias * by[:, None] for each, weight, bias, by in parts])
    assert relative(found, wanted) < LIMIT
    wanted.backward(gradient.float())
    assert share.grad is not None
    of_shares = torch.ones(count, device="cuda")
    biased.add_share_gradients(gradient, biases, splits, of_shares)
    assert relative(of_shares - 1, share.grad) < LIMIT
    for adds, dtype in ((True, torch.float32), (False, torch.bfloat16)):
        buffers = list(torch.ones(len(splits), outputs, device="cuda", dtype=dtype).unbind())
        biased.add_bias_gradients(gradient, buffers, splits, adds=adds, shares=shares)
        for buffer, bias in zip(buffers, exact, strict=True):
            assert bias.grad is not None
            assert relative(buffer - int(adds), bias.grad) < LIMIT


GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "swiglu": torch.nn.functional.silu,
    "geglu": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
    "quick_geglu": lambda x: x * torch.sigmoid(1.702 * x),
}


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("activation", GATES)
@pytest.mark.parametrize(("tokens", "width"), [(1000, 768), (37, 1408), (5, 2500), (0, 64)])
def test_activation(tokens: int, width: int, activation: str, limited: bool) -> None:
    """Weighted gates and their gradients, beside torch's in fp32; clamped and raised as gpt-oss's are, also."""
    needs_gpus(1, "torch")
    kernel = kernels("weighted_gate", "this test")
    torch.manual_seed(1)
    gated, gradient = torch.randn(tokens, 2 * width, **IN_BF16), torch.randn(tokens, width, **IN_BF16)
    weights = torch.rand(tokens, device="cuda")
    fields = {
        "activation": activation,
        **({"activation_func_clamp_value": 1.5, "glu_linear_offset": 1.0} if limited else {}),
    }
    gate = gate_of(JOB.model.model_copy(update=fields))
    exact = gated.float().requires_grad_(), weights.clone().requires_grad_()
    x, up = exact[0].chunk(2, -1)
    if limited:
        x, up = x.clamp(max=1.5), up.clamp(-1.5, 1.5) + 1
    wanted = GATES[activation](x) * up * exact[1][:, None]
    wanted.backward(gradient.float())
    assert exact[0].grad is not None
    assert exact[1].grad is not None
    of_gated, of_weights = kernel.weighted_gate_gradient(gradient, gated, weights, gate)
    assert relative(kernel.weighted_gate(gated, weights, gate), wanted) < LIMIT
    assert relative(of_gated, exact[0].grad) < LIMIT
    assert relative(of_weights, exact[1].grad) < LIMIT


@pytest.mark.parametrize(
    ("experts", "inputs", "outputs"),
    [(32, 2048, 1536), (32, 768, 2048), (2, 4096, 28672), (8, 2880, 5760), (8, 2880, 2880)],
)
def test_weight_gradients_are_fast(experts: int, inputs: int, outputs: int) -> None:
    """Of Qwen3-30B-A3B's, Mixtral's and gpt-oss-20b's experts on one of four ranks, beside cuBLAS for each expert."""
    needs_gpus(1, "torch")
    add_products = kernels("grouped_products", "this test").add_products
    torch.manual_seed(1)
    splits = torch.distributions.Multinomial(65536, torch.rand(experts) + 1).sample().int().tolist()
    tokens, of_output = (torch.randn(65536, width, **IN_BF16) for width in (inputs, outputs))
    buffers = list(torch.zeros(experts, outputs, inputs, device="cuda").unbind())

    def together() -> None:
        add_products(tokens, of_output, buffers, splits, adds=True)

    def one_by_one() -> None:
        for rows, of, buffer in zip(tokens.split(splits), of_output.split(splits), buffers, strict=True):
            accumulate(rows, of, buffer)

    ours, cublas = milliseconds(together), milliseconds(one_by_one)
    rate = 2 * 65536 * inputs * outputs / 1e9
    print(
        f"\nRESULT weight gradients of {experts} experts, {outputs} x {inputs}: {ours:.2f} ms, "
        f"{rate / ours:.0f} TFLOP/s; cuBLAS for each {cublas:.2f} ms, {rate / cublas:.0f} TFLOP/s"
    )
    assert ours < cublas * 1.1


def milliseconds(run: Callable[[], None], times: int = 20) -> float:
    """The mean time of a call: the host's or the GPU's, whichever takes longer."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times * 1e3
