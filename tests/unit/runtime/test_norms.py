"""Norms in place of megatron-core's, which without apex and Transformer Engine refuses sequence parallelism."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.engine_layers import transformer_engine_layers
from support.training import layout, tiny_job
from torch.nn import functional

from orchestrator.runtime.layers.normalization.norms import Norm
from orchestrator.runtime.layers.normalization.per_head_norm import PerHeadNorm
from orchestrator.runtime.network.model import transformer_config
from orchestrator.runtime.processes.device import Device

CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")  # megatron-core's, of its own default
@pytest.mark.parametrize(
    ("model", "names"),
    [
        ({"normalization": "LayerNorm"}, {"weight", "bias"}),
        ({"normalization": "LayerNorm", "norm_bias": False}, {"weight"}),
        ({"normalization": "RMSNorm"}, {"weight"}),
    ],
)
def test_their_parameters_are_like_the_models(model: dict[str, Any], names: set[str]) -> None:
    """In its dtype: megatron-core's distributed optimizer groups those of another one apart, and cannot save them in
    the model's order. Marked: a tensor-parallel rank sees a part of the tokens, so gradients are summed.
    """
    job = tiny_job(
        "norms",
        model=model,
        precision={"dtype": "bf16"},
        parallelism=layout(tp=2, sequence_parallel=True),
    )
    config = transformer_config(job, CPU, "torch")
    parameters = dict(Norm(config, 8).named_parameters())
    assert parameters.keys() == names
    assert {each.dtype for each in parameters.values()} == {torch.bfloat16}
    assert all(vars(each)["sequence_parallel"] for each in parameters.values())


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")
@pytest.mark.parametrize("norm_bias", [True, False])
def test_transformer_engines_layers_have_torchs_norms_where_these_have_no_bias(
    norm_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As modules, with the keys of parts of the linear layers in checkpoints. Stand-ins are an Identity."""
    module = transformer_engine_layers(monkeypatch)
    block = module.block_spec(transformer_config(tiny_job("norms", model={"norm_bias": norm_bias}), CPU, "torch"), None)
    [layer] = block.layer_specs
    parts = layer.submodules
    assert (block.layer_norm is Norm) is not norm_bias
    assert (parts.input_layernorm is parts.pre_mlp_layernorm is Norm) is not norm_bias
    assert (parts.self_attention.submodules.linear_qkv is parts.mlp.submodules.linear_fc1 is torch.nn.Identity) is (
        not norm_bias
    )
    assert parts.sharded_state_dict_keys_map["input_layernorm."] == "self_attention.linear_qkv.layer_norm_"
    assert parts.sharded_state_dict_keys_map["pre_mlp_layernorm."] == "mlp.linear_fc1.layer_norm_"


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")
def test_the_norm_of_each_head_is_torchs() -> None:
    """Values and gradients of torch's LayerNorm, times the weights of each head."""
    model = {"qk_layernorm": True, "qk_layernorm_scope": "per_head"}
    norm = PerHeadNorm(transformer_config(tiny_job("norms", model=model), CPU, "torch"), 8, heads=3, eps=1e-3)
    x = torch.randn(5, 2, 3, 8, requires_grad=True)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(24))
    found, expected = norm(x), functional.layer_norm(x, (8,), eps=1e-3) * norm.weight.view(3, 8)
    gradient = torch.randn(5, 2, 3, 8)
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(
        *(torch.autograd.grad(each, (x, norm.weight), gradient) for each in (found, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
