"""Where neither bias nor dropout stands behind a branch, its residual is one addition; on a GPU all is one kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from megatron.core.fusions import fused_bias_dropout
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from support.engine_layers import have_layers
from support.training import tiny_job

from orchestrator.runtime import megatron_compat
from orchestrator.runtime.layers import torch_layers
from orchestrator.runtime.layers.normalization.bias_dropout_add import add_all, add_residual, drop_and_add
from orchestrator.runtime.layers.torch_layers import block_spec
from orchestrator.runtime.network.model import transformer_config
from orchestrator.runtime.processes.device import Device
from tests.unit.runtime.conftest import PutKernels

CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")  # megatron-core's, of its own default
@pytest.mark.parametrize(
    ("model", "is_plain"),
    [
        ({"add_bias_linear": False}, True),
        ({"add_bias_linear": True}, False),
        ({"add_bias_linear": False, "hidden_dropout": 0.1}, False),
        ({"add_bias_linear": False, "attention_dropout": 0.1, "num_experts": 2}, True),
    ],
)
def test_layers_have_it_where_it_is_all_there_is_to_do(
    model: dict[str, Any], is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = transformer_config(tiny_job("residual", model=model), CPU, "torch")
    have_layers(monkeypatch, torch_layers, [False, True])
    for layer in block_spec(config, None).layer_specs:
        found = {layer.submodules.self_attn_bda, layer.submodules.mlp_bda}
        assert found == {add_residual if is_plain else get_bias_dropout_add}


def test_it_is_what_megatron_core_does() -> None:
    generator = torch.Generator().manual_seed(1)
    x, residual = (torch.randn(6, 2, 16, generator=generator, dtype=torch.bfloat16) for _ in range(2))
    results = []
    for add in (add_residual, get_bias_dropout_add):
        inputs = [x.clone().requires_grad_(), residual.clone().requires_grad_()]
        out = add(training=True, fused=False)((inputs[0], None), inputs[1], 0.0)
        out.float().square().sum().backward()
        results.append([out.detach(), *(each.grad for each in inputs)])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_on_a_gpu_every_familys_layers_have_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    names = vars(fused_bias_dropout)
    for name in ("bias_dropout_add_fused_train", "bias_dropout_add_fused_inference"):
        monkeypatch.setitem(names, name, names[name])
    megatron_compat.drop_in_one_kernel()
    assert get_bias_dropout_add(training=True, fused=True) is drop_and_add
    assert get_bias_dropout_add(training=False, fused=True) is add_all
    assert get_bias_dropout_add(training=True, fused=False) not in (drop_and_add, add_all)


class Operations:
    """`kernels.residual` by torch's operations; what is dropped is every third element."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def drop_and_add(
        self, x: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor, probability: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert x.is_contiguous()
        assert residual.is_contiguous()
        self.called.append("forward")
        kept = None if not probability else (torch.arange(x.numel()) % 3 > 0).view(x.shape)
        return residual + scaled(x if bias is None else x + bias, kept, probability), kept

    def gradients(
        self, gradient: torch.Tensor, kept: torch.Tensor | None, probability: float, of_bias: torch.dtype | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert gradient.is_contiguous()
        self.called.append("bias" if of_bias else "backward")
        of_x = scaled(gradient, kept, probability)
        return of_x, of_x.sum(0).to(of_bias) if of_bias else None


def scaled(x: torch.Tensor, kept: torch.Tensor | None, probability: float) -> torch.Tensor:
    return x if kept is None else x * kept / (1 - probability)


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("bias", ["none", "frozen", "trained"])
def test_the_kernels_get_what_they_take(bias: str, dropout: float, put_kernels: PutKernels) -> None:
    operations = Operations()
    put_kernels("residual", operations)
    generator = torch.Generator().manual_seed(1)
    results = []
    for add in (drop_and_add, by_operations):
        generator.manual_seed(1)
        # Neither lies as the kernels take it.
        x, residual = (torch.randn(2, 5, 6, generator=generator).transpose(0, 1).requires_grad_() for _ in range(2))
        values = torch.randn(6, generator=generator).requires_grad_(bias == "trained")
        out = add((x, None if bias == "none" else values), residual, dropout)
        out.backward(torch.randn(2, 5, 6, generator=generator).transpose(0, 1))
        results.append([out.detach(), x.grad, residual.grad, values.grad])
    for ours, theirs in zip(*results, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs)
    is_plain = bias == "none" and not dropout
    assert operations.called == ([] if is_plain else ["forward", "bias" if bias == "trained" else "backward"])


def by_operations(
    branch: tuple[torch.Tensor, torch.Tensor | None], residual: torch.Tensor, dropout: float
) -> torch.Tensor:
    """The same, for autograd."""
    x, bias = branch
    kept = (torch.arange(x.numel()) % 3 > 0).view(x.shape) if dropout else None
    return residual + scaled(x if bias is None else x + bias, kept, dropout)


def test_evaluation_drops_nothing(put_kernels: PutKernels) -> None:
    put_kernels("residual", Operations())
    x, bias, residual = (torch.full((2, 3, 4), value) for value in (1.0, 2.0, 3.0))
    assert torch.equal(add_all((x, bias[0, 0]), residual, 0.5), torch.full((2, 3, 4), 6.0))
