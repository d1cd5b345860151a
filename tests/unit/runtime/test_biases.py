"""Where a bias is added in a product of Transformer Engine's, and how its gradients stay where they are."""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.transformer import attention
from megatron.core.transformer.mlp import MLP
from support.training import tiny_job

from orchestrator.runtime import megatron_compat
from orchestrator.runtime.layers.biases import add_in_products
from orchestrator.runtime.network import model
from orchestrator.runtime.processes.device import Device

CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")


class Linear(torch.nn.Module):
    """As megatron-core's linears over Transformer Engine's say what becomes of their bias."""

    def __init__(self, *, has_bias: bool) -> None:
        super().__init__()
        self.te_return_bias = self.return_bias = has_bias
        self.apply_bias = False


class Another(MLP):
    """What has passes of its own."""


def mlp(kind: type[MLP], *, has_bias: bool = True) -> MLP:
    made = kind.__new__(kind)
    torch.nn.Module.__init__(made)
    made.linear_fc1, made.linear_fc2 = Linear(has_bias=has_bias), Linear(has_bias=has_bias)
    return made


@pytest.mark.parametrize(
    ("kind", "fuses", "has_bias", "adds"),
    [(MLP, False, True, True), (MLP, True, True, False), (MLP, False, False, False), (Another, False, True, False)],
    ids=["plain", "megatron-core fuses it", "no bias", "a subclass"],
)
def test_a_bias_that_would_have_a_kernel_of_its_own(kind: type[MLP], fuses: bool, has_bias: bool, adds: bool) -> None:
    part: Any = mlp(kind, has_bias=has_bias)
    config: Any = SimpleNamespace(bias_activation_fusion=fuses)
    add_in_products(torch.nn.Sequential(part), config)
    assert part.linear_fc1.apply_bias is adds
    assert part.linear_fc1.te_return_bias is part.linear_fc1.return_bias is (has_bias and not adds)
    assert part.linear_fc2.te_return_bias is has_bias, "dropout and the residual are added with it"


def test_what_is_torch_s_stays_as_it_is() -> None:
    part: Any = mlp(MLP)
    part.linear_fc1 = torch.nn.Linear(1, 1)
    config: Any = SimpleNamespace(bias_activation_fusion=False)
    add_in_products(part, config)
    assert not hasattr(part.linear_fc1, "apply_bias")


def test_networks_are_built_so(monkeypatch: pytest.MonkeyPatch) -> None:
    part: Any = mlp(MLP)
    family = SimpleNamespace(build_chunk=lambda *given: torch.nn.Sequential(part))
    monkeypatch.setattr(model, "family_of", lambda job: family)
    monkeypatch.setattr(model, "initialize_weights", lambda *given, **named: None)
    config: Any = SimpleNamespace(bias_activation_fusion=False, params_dtype=torch.float32)
    words: Any = SimpleNamespace(size=1)
    ranks: Any = SimpleNamespace(num_chunks=1)
    model.build_chunks(tiny_job("biases"), config, CPU, "transformer_engine", words, ranks)
    assert part.linear_fc1.apply_bias


@pytest.mark.parametrize("has", [True, False])
def test_the_split_of_transformer_engine_is_found(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("transformer_engine.pytorch.utils")
    if has:
        module.SplitAlongDim = SimpleNamespace(apply="its split")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(attention, "SplitAlongDim", None)
    megatron_compat.split_as_transformer_engine()
    assert attention.SplitAlongDim == ("its split" if has else None)


def test_what_megatron_core_found_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "SplitAlongDim", "found")
    megatron_compat.split_as_transformer_engine()
    assert attention.SplitAlongDim == "found"
