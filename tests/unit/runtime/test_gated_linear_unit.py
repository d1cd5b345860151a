"""Gated activations of a model are ours on a GPU, and megatron-core's where no kernel of ours is to be had."""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from tests.unit.runtime.conftest import PutKernels

# isort: split
import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.transformer.mlp import MLP
from support.matrix import FAMILIES
from support.training import tiny_job
from torch.nn import functional

from orchestrator.kernel_selection.fused_kernels import gate_in_one_kernel
from orchestrator.runtime.layers.gated_linear_unit import use_gate
from orchestrator.runtime.layers.images.encoder import config_of_encoder
from orchestrator.runtime.layers.images.native_encoder import config_of_native_encoder
from orchestrator.runtime.network.model import transformer_config
from orchestrator.runtime.processes.device import Device

CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")


@pytest.mark.parametrize(
    ("model", "dtype", "gate"),
    [
        ({"add_bias_linear": False, "activation": "geglu"}, "bf16", "geglu"),
        ({"add_bias_linear": False, "activation": "geglu"}, "fp32", None),
        ({"add_bias_linear": False, "activation": "swiglu"}, "bf16", "swiglu"),
        ({"add_bias_linear": False, "activation": "geglu_exact"}, "bf16", "geglu_exact"),
        ({"activation": "geglu", "add_bias_linear": True}, "bf16", None),
        ({"activation": "gelu_tanh", "add_bias_linear": False}, "bf16", None),
        ({**FAMILIES["experts"], "activation": "geglu"}, "bf16", None),
    ],
)
def test_which_is_a_kernel_of_ours(model: dict[str, Any], dtype: str, gate: str | None) -> None:
    assert gate_in_one_kernel(tiny_job("gated", model=model, precision={"dtype": dtype})) == gate


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")  # megatron-core's, of its own default
def test_an_mlp_computes_by_it(put_kernels: PutKernels) -> None:
    """What megatron-core's would, in both passes, by torch's operations in place of the kernels."""

    def gated(x: torch.Tensor, gate: str) -> torch.Tensor:
        assert x.is_contiguous()
        first, second = x.chunk(2, dim=1)
        return functional.gelu(first, approximate="tanh") * second

    def gradient(upstream: torch.Tensor, x: torch.Tensor, gate: str) -> torch.Tensor:
        assert upstream.is_contiguous()
        with torch.enable_grad():
            inputs = x.detach().requires_grad_()
            return torch.autograd.grad(gated(inputs, gate), inputs, upstream)[0]

    put_kernels("gated_linear_unit", SimpleNamespace(gated=gated, gated_gradient=gradient))
    config = transformer_config(tiny_job("gated", model={"activation": "geglu"}), CPU, "torch")
    results = []
    for is_ours in (False, True):
        if is_ours:
            use_gate(config, "geglu")
        x = torch.linspace(-3, 3, 48).view(2, 3, 8).requires_grad_()
        out = MLP.forward(_passing(config), x)[0]
        out.backward(torch.linspace(1, 2, 24).view(2, 4, 3).transpose(1, 2))
        results.append((out.detach(), x.grad))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")
def test_an_encoder_of_images_has_it_where_it_has_a_gate() -> None:
    for family, kernel in (("native", True), ("vision", False)):
        job = tiny_job("gated", model={**FAMILIES[family], "add_bias_linear": False}, precision={"dtype": "bf16"})
        config = transformer_config(job, CPU, "torch")
        config_of = config_of_native_encoder if kernel else config_of_encoder
        assert not config_of(job.model.image_encoder, config).use_te_activation_func
        use_gate(config, "swiglu")
        own = config_of(job.model.image_encoder, config)
        assert own.use_te_activation_func is kernel
        assert isinstance(own.activation_func, functools.partial) is kernel


def _passing(config: Any) -> Any:
    """An MLP whose matrices give what they get."""
    return SimpleNamespace(
        config=config,
        activation_func=config.activation_func,
        linear_fc1=lambda x: (x, None),
        linear_fc2=lambda x: (x, None),
    )
