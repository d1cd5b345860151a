"""Norms in place of megatron-core's, which without apex and Transformer Engine refuses sequence parallelism."""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from tests.unit.runtime.conftest import PutKernels

# isort: split
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.engine_layers import transformer_engine_layers
from support.matrix import FAMILIES
from support.training import layout, tiny_job
from torch.nn import functional

from orchestrator.kernel_selection.fused_kernels import lacks_tuned_norm, normalizes_in_kernels
from orchestrator.runtime.layers.normalization.norms import KernelNorm, Norm
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
    config = transformer_config(tiny_job("norms", model={"norm_bias": norm_bias}), CPU, "torch")
    block = module.block_spec(config, None)
    [layer] = block.layer_specs
    parts, built = layer.submodules, module.FastestNorm(config, 8)
    assert block.layer_norm is module.FastestNorm
    assert isinstance(built, Norm) is not norm_bias
    assert (parts.input_layernorm is parts.pre_mlp_layernorm is module.FastestNorm) is not norm_bias
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


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, True),
        ({"precision": {"dtype": "fp32"}}, False),
        ({"runtime": {"recompute_granularity": "selective", "recompute_modules": ["layernorm"]}}, False),
        ({"model": FAMILIES["latent"]}, False),
    ],
)
def test_where_norms_of_any_width_are_kernels_of_our_own(changes: dict[str, Any], chosen: bool) -> None:
    job = tiny_job("norms", **{"precision": {"dtype": "bf16"}, **changes})
    assert normalizes_in_kernels(job, "transformer_engine") is chosen
    assert not normalizes_in_kernels(job, "torch")


def test_which_widths_transformer_engine_has_no_norm_for() -> None:
    assert [lacks_tuned_norm("RMSNorm", width) for width in (1024, 1152, 3072, 16384)] == [False, True, True, False]
    assert [lacks_tuned_norm("LayerNorm", width) for width in (1024, 1152, 3072)] == [False, True, False]


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")
def test_layers_have_our_norms_at_such_a_width_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before linear layers that do not normalise, with the keys of parts of these in checkpoints."""
    module = transformer_engine_layers(monkeypatch)
    for width, ours in ((1152, True), (1024, False)):
        model = {"hidden_size": width, "num_attention_heads": 8, "normalization": "RMSNorm"}
        config = transformer_config(tiny_job("norms", model=model), CPU, "torch")
        config.normalizes_in_kernels = True
        parts = module.block_spec(config, None).layer_specs[0].submodules
        assert isinstance(module.FastestNorm(config, width), KernelNorm) is ours
        assert (parts.input_layernorm is parts.pre_mlp_layernorm is module.FastestNorm) is ours
        assert (parts.self_attention.submodules.linear_qkv is torch.nn.Identity) is ours
        assert parts.sharded_state_dict_keys_map["pre_mlp_layernorm."] == "mlp.linear_fc1.layer_norm_"


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")
@pytest.mark.parametrize("normalization", ["RMSNorm", "LayerNorm"])
def test_the_kernels_get_what_they_take(normalization: str, put_kernels: PutKernels) -> None:
    """Both passes, of contiguous rows, by torch's operations in place of the kernels."""
    put_kernels("norms", SimpleNamespace(normalize=_normalize, gradients=_gradients))
    model = {"normalization": normalization, "apply_layernorm_1p": True}
    config = transformer_config(tiny_job("norms", model=model), CPU, "torch")
    results = []
    for kind in (Norm, KernelNorm):
        norm = kind(config, 6, eps=1e-3)
        with torch.no_grad():
            norm.weight.copy_(torch.linspace(-1, 1, 6))
        x = torch.linspace(-4, 4, 48).view(2, 6, 4).cos().transpose(1, 2).requires_grad_()
        out = norm(x)
        out.backward(torch.linspace(1, 2, 48).view(2, 6, 4).transpose(1, 2))
        results.append((out.detach(), x.grad, *(each.grad for each in norm.parameters())))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def _normalize(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, *, is_rms: bool, adds_one: bool
) -> Any:
    assert x.is_contiguous()
    assert x.dim() == 2
    means = None if is_rms else x.mean(1)
    centred = x if means is None else x - means[:, None]
    inverses = (centred.square().mean(1) + eps).rsqrt()
    rows = centred * inverses[:, None] * (weight + adds_one)
    return SimpleNamespace(rows=rows if bias is None else rows + bias, means=means, inverses=inverses)


def _gradients(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, normed: Any, *, has_bias: bool, adds_one: bool
) -> Any:
    assert gradient.is_contiguous()
    means, inverses = normed
    normed = (x if means is None else x - means[:, None]) * inverses[:, None]
    scaled = gradient * (weight + adds_one)
    of_x = scaled - normed * (scaled * normed).mean(1, keepdim=True)
    of_x = of_x if means is None else of_x - scaled.mean(1, keepdim=True)
    return of_x * inverses[:, None], (gradient * normed).sum(0), gradient.sum(0) if has_bias else None
