"""The exact GeLU of a model is ours, which is torch's where no kernel is to be had."""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from tests.unit.runtime.conftest import PutKernels

# isort: split
from types import SimpleNamespace

import pytest
import torch
from support.training import tiny_job
from torch.nn import functional

from orchestrator.runtime.layers import gelu as module
from orchestrator.runtime.layers.gelu import gelu
from orchestrator.runtime.network.model import transformer_config
from orchestrator.runtime.processes.device import Device

CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")  # megatron-core's, of its own default
def test_layers_compute_by_it() -> None:
    assert transformer_config(tiny_job("gelu", model={"activation": "gelu"}), CPU, "torch").activation_func is gelu


def test_on_a_cpu_it_is_torchs() -> None:
    x = torch.linspace(-4, 4, 33).bfloat16()
    assert torch.equal(gelu(x), functional.gelu(x))


def test_the_kernels_get_what_they_take(put_kernels: PutKernels) -> None:
    """Both passes, contiguous, by torch's operations in place of the kernels."""

    def gradient(x: torch.Tensor, upstream: torch.Tensor) -> torch.Tensor:
        assert x.is_contiguous()
        assert upstream.is_contiguous()
        return torch.ops.aten.gelu_backward(upstream, x)

    operations = SimpleNamespace(gelu=functional.gelu, gelu_gradient=gradient)
    put_kernels("gelu", operations)
    results = []
    for function in (functional.gelu, lambda x: module.Gelu.apply(x.contiguous())):
        x = torch.linspace(-4, 4, 24).view(4, 6).t().requires_grad_()
        out = function(x)
        out.backward(torch.linspace(1, 2, 24).view(4, 6).t())
        results.append((out.detach(), x.grad))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
