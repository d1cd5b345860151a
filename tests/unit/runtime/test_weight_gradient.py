"""Weight gradients added to their buffer by the product that computes them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.refused import refused
from support.training import tiny_job

from orchestrator.errors import MissingDependency
from orchestrator.runtime.layers import weight_gradient
from orchestrator.runtime.layers.weight_gradient import accumulate, fuses_accumulation
from orchestrator.runtime.processes.device import Device

GPU = Device("cuda", torch.device("cpu"), "nccl", "a GPU in name only")
CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")


@pytest.mark.parametrize(
    ("of_matrices", "of_buffer"),
    [("float32", "float32"), ("bfloat16", "float32"), ("float16", "float32"), ("bfloat16", "bfloat16")],
)
def test_added_in_place(of_matrices: str, of_buffer: str) -> None:
    torch.manual_seed(1)
    inputs, of_output = (torch.randn(40, width).to(getattr(torch, of_matrices)) for width in (24, 16))
    storage = torch.randn(16 * 24 + 8).to(getattr(torch, of_buffer))
    before, buffer = storage.clone(), storage[4:-4].view(16, 24)
    accumulate(inputs, of_output, buffer)
    exact = before[4:-4].view(16, 24).double() + of_output.t().double() @ inputs.double()
    assert (buffer - exact).abs().max() < (0.1 if of_buffer == "bfloat16" else 2e-5)
    assert torch.equal(storage[:4], before[:4])
    assert torch.equal(storage[-4:], before[-4:])


def test_no_tokens_add_nothing() -> None:
    buffer = torch.ones(3, 5)
    accumulate(torch.empty(0, 5), torch.empty(0, 3), buffer)
    assert torch.equal(buffer, torch.ones(3, 5))


@pytest.mark.parametrize(
    ("choice", "dtype", "device", "in_fp32", "fused"),
    [
        ("auto", "bf16", GPU, True, True),
        ("auto", "fp16", GPU, True, True),
        ("auto", "fp32", GPU, True, False),
        ("auto", "bf16", GPU, False, True),
        ("auto", "bf16", CPU, True, False),
        ("auto", "bf16", CPU, False, False),
        (True, "bf16", CPU, True, True),
        (True, "fp32", CPU, False, True),
        (False, "bf16", GPU, True, False),
    ],
)
def test_what_chooses(choice: Any, dtype: str, device: Device, in_fp32: bool, fused: bool, tiny: Any) -> None:
    job = tiny(choice, dtype, in_fp32)
    of_matrices = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    assert fuses_accumulation(job, device, of_matrices) is fused


def test_frozen_matrices_have_no_gradients_to_add() -> None:
    adapted = tiny_job("adapted", model={"lora": {"rank": 4}}, precision={"dtype": "bf16"})
    assert not fuses_accumulation(adapted, GPU, torch.bfloat16)


Install = Callable[[Callable[..., None]], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """install(accumulate): a torch whose product that adds is this."""
    return functools.partial(monkeypatch.setattr, weight_gradient, "accumulate")


@pytest.mark.parametrize(
    "trouble", [RuntimeError("self and mat2 must have the same dtype"), TypeError("out_dtype"), None]
)
def test_an_older_torch(trouble: Exception | None, install: Install, tiny: Any) -> None:
    """`auto` does without; what was asked for by name is refused, also where the product is wrong."""

    def older(*matrices: torch.Tensor) -> None:
        if trouble is not None:
            raise trouble

    install(older)
    assert not fuses_accumulation(tiny("auto", "bf16", True), GPU, torch.bfloat16)
    with refused("torch_too_old", "gradient_accumulation_fusion", "bf16", kind=MissingDependency):
        fuses_accumulation(tiny(True, "bf16", True), GPU, torch.bfloat16)


@pytest.mark.parametrize(("joined", "fused"), [(False, True), (True, False)])
def test_a_torch_that_adds_only_to_its_own_dtype(joined: bool, fused: bool, install: Install) -> None:
    """Products add gradients in 16 bits there, but not where the joined loss sums its table's in fp32."""

    def older(inputs: torch.Tensor, of_output: torch.Tensor, buffer: torch.Tensor) -> None:
        buffer.addmm_(of_output.t(), inputs)  # refuses other dtypes

    install(older)
    precision, runtime = {"dtype": "bf16", "grad_reduce_in_fp32": False}, {"fused_linear_cross_entropy": joined}
    assert fuses_accumulation(tiny_job("job", precision=precision, runtime=runtime), GPU, torch.bfloat16) is fused


@pytest.fixture
def tiny() -> Any:
    def make(choice: Any, dtype: str, in_fp32: bool) -> Any:
        precision = {"dtype": dtype, "grad_reduce_in_fp32": in_fp32}
        return tiny_job("job", precision=precision, runtime={"gradient_accumulation_fusion": choice})

    return make
