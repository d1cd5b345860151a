"""Norms' kernels give what torch's give in fp64, rounded, the same each time, as fast as memory moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.gpu_clock import fastest_in_graph, memory_bandwidth
from support.measured import needs_gpus
from torch.nn import functional

from orchestrator.runtime.layers.normalization.norms import KernelNorm
from orchestrator.runtime.triton_kernels.loading import kernels

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

LEAST_SHARE = {"forward": 0.6, "backward": 0.45}
"""Of the bandwidth in the datasheet, the sums of the weights' gradient included; Transformer Engine's norms of any
width reach 0.22 in the backward pass.
"""
SHAPES = {
    "wide": ((1025, 2, 2880), torch.bfloat16),
    "odd": ((37, 3, 300), torch.float16),
    "heads": ((64, 2, 4, 256), torch.bfloat16),
    "narrow": ((5, 1, 8), torch.float16),
}


def norm_of(width: int, dtype: torch.dtype, *, is_rms: bool, adds_one: bool) -> KernelNorm:
    config: Any = SimpleNamespace(
        normalization="RMSNorm" if is_rms else "LayerNorm",
        layernorm_zero_centered_gamma=adds_one,
        params_dtype=dtype,
        sequence_parallel=False,
    )
    norm = KernelNorm(config, width, 1e-5).cuda()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(width))
    return norm


@pytest.mark.parametrize("adds_one", [False, True], ids=["weight", "1 + weight"])
@pytest.mark.parametrize("is_rms", [False, True], ids=["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize(("shape", "dtype"), SHAPES.values(), ids=list(SHAPES))
def test_values_and_gradients(shape: tuple[int, ...], dtype: torch.dtype, is_rms: bool, adds_one: bool) -> None:
    needs_gpus(1, "torch")
    norm, width = norm_of(shape[-1], dtype, is_rms=is_rms, adds_one=adds_one), shape[-1]
    x = (torch.randn(shape, device="cuda") + 1).to(dtype).requires_grad_()
    gradient = torch.randn(shape, device="cuda").to(dtype)
    exact = [each.detach().double().requires_grad_() for each in (x, *norm.parameters())]
    scale = exact[1] + 1 if adds_one else exact[1]
    if is_rms:
        wanted = functional.rms_norm(exact[0], (width,), scale, 1e-5)
    else:
        wanted = functional.layer_norm(exact[0], (width,), scale, exact[2], 1e-5)
    found = norm(x)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), wanted, rtol=0.52 * eps, atol=1e-5)
    of_found = torch.autograd.grad(found, (x, *norm.parameters()), gradient)
    of_wanted = torch.autograd.grad(wanted, exact, gradient.double())
    torch.testing.assert_close(of_found[0].double(), of_wanted[0], rtol=0.52 * eps, atol=1e-5)
    for ours, theirs in zip(of_found[1:], of_wanted[1:], strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0.52 * eps, atol=1e-3)


def test_gradients_are_the_same_each_time() -> None:
    needs_gpus(1, "torch")
    norm, x = norm_of(1152, torch.bfloat16, is_rms=True, adds_one=True), torch.randn(8192, 1152, device="cuda")
    gradient, inputs = torch.randn_like(x).bfloat16(), x.bfloat16().requires_grad_()
    out = norm(inputs)
    one, other = (torch.autograd.grad(out, (inputs, norm.weight), gradient, retain_graph=True) for _ in range(2))
    for first, second in zip(one, other, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("width", [1152, 2880])
def test_memory_is_passed_over_once(width: int) -> None:
    """Repeated as a graph, beside which the host takes no time."""
    needs_gpus(1, "torch")
    x, gradient = (torch.randn(32768, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.randn(width, device="cuda", dtype=torch.bfloat16)
    module = kernels("norms", "a norm")
    normed = module.normalize(x, weight, None, 1e-6, is_rms=True, adds_one=True)
    statistics = (normed.means, normed.inverses)
    for name, run, moved in (
        ("forward", lambda: module.normalize(x, weight, None, 1e-6, is_rms=True, adds_one=True), 4),
        ("backward", lambda: module.gradients(gradient, x, weight, statistics, has_bias=False, adds_one=True), 6),
    ):
        seconds = fastest_in_graph(run)
        rate = moved * x.numel() / seconds
        print(f"\nRESULT norm of {width} {name}: {seconds * 1e6:.1f} us, {rate / 1e12:.2f} TB/s")
        assert rate > LEAST_SHARE[name] * memory_bandwidth()
