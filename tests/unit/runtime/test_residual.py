"""Where neither bias nor dropout stands behind a branch, its residual is one addition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from support.training import tiny_job

from orchestrator.runtime.layers.residual import add_residual
from orchestrator.runtime.layers.torch_layers import block_spec
from orchestrator.runtime.network.model import transformer_config
from orchestrator.runtime.processes.device import Device

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
    monkeypatch.setattr("orchestrator.runtime.layers.torch_layers.layers_of_chunk", lambda config, stage: [False, True])
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
