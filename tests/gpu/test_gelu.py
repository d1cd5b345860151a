"""GeLU's kernels give what torch's give in fp64, rounded, as fast as memory moves."""

from __future__ import annotations

import pytest
import torch
from support.gpu_clock import fastest, memory_bandwidth
from support.measured import needs_gpus
from torch.nn import functional

from orchestrator.runtime.layers.gelu import gelu

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

LEAST_SHARE = 0.66
"""Of the bandwidth in the datasheet: an H200 reaches 0.87, and torch's kernels 0.58 there."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_number_has_the_nearest_gelu(dtype: torch.dtype) -> None:
    needs_gpus(1, "torch")
    bits = torch.arange(-(2**15), 2**15, device="cuda", dtype=torch.int32).to(torch.int16)
    x = bits.view(dtype)
    x = x[x.isfinite()]
    one, other = x.clone().requires_grad_(), x.double().requires_grad_()
    gradient = torch.linspace(-3, 3, len(x), device="cuda").to(dtype)
    for values, function, upstream in ((one, gelu, gradient), (other, functional.gelu, gradient.double())):
        function(values).backward(upstream)
    eps = torch.finfo(dtype).eps
    # The least numbers of 16 bits are a step apart that is no part of their size; and below -13 the exponential is less
    # than fp32's least number.
    least = max(0.51 * torch.finfo(dtype).smallest_normal * eps, 1e-15)
    torch.testing.assert_close(gelu(x).double(), functional.gelu(x.double()), rtol=0.51 * eps, atol=least)
    assert one.grad is not None
    assert other.grad is not None
    torch.testing.assert_close(one.grad.double(), other.grad, rtol=0.51 * eps, atol=1e-6)


def test_what_is_not_finite_stays_so() -> None:
    needs_gpus(1, "torch")
    x = torch.tensor([float("nan"), float("inf")], device="cuda", dtype=torch.bfloat16)
    assert not gelu(x).isfinite().any()


def test_memory_is_passed_over_once() -> None:
    needs_gpus(1, "torch")
    x = torch.randn(16384, 8192, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn_like(x)
    forward = fastest(lambda: gelu(x.detach()), each=20)
    out = gelu(x)
    backward = fastest(lambda: torch.autograd.grad(out, x, gradient, retain_graph=True), each=20)
    for name, seconds, moved in (("forward", forward, 4), ("backward", backward, 6)):
        rate = moved * x.numel() / seconds
        print(f"\nRESULT GeLU {name}: {seconds * 1e3:.3f} ms, {rate / 1e12:.2f} TB/s")
        assert rate > LEAST_SHARE * memory_bandwidth()
