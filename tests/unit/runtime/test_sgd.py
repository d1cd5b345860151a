"""Our SGD and our Adam with coupled decay against torch's, and which parameters are decayed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orchestrator.runtime.optimizers.adam import GroupStepAdam
from orchestrator.runtime.optimizers.parameter_groups import is_decayed
from orchestrator.runtime.optimizers.sgd import MomentumSGD
from orchestrator.spec.sections.optimizer import OptimizerSpec

SHAPES = [(1,), (7,), (33, 5), (129,)]


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def groups(params: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": params[:2], "weight_decay": 0.0}, {"params": params[2:], "weight_decay": 0.3, "lr": 1e-3}]


def train(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter]) -> None:
    for step in range(12):
        generator = torch.Generator().manual_seed(1000 + step)
        for parameter in params:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_bitwise_those_of_sgd(momentum: float) -> None:
    ours, theirs = parameters(), parameters()
    optimizer = MomentumSGD(groups(ours), lr=3e-3, momentum=momentum)
    optimizer.prepare()
    train(optimizer, ours)
    train(torch.optim.SGD(groups(theirs), lr=3e-3, momentum=momentum, fused=True), theirs)
    assert all(torch.equal(mine, reference) for mine, reference in zip(ours, theirs, strict=True))
    assert {tuple(optimizer.state[parameter]) for parameter in ours} == {("exp_avg",) if momentum else ()}


def test_coupled_weight_decay_is_bitwise_that_of_adam() -> None:
    ours, theirs = parameters(), parameters()
    train(GroupStepAdam(groups(ours), lr=3e-3, adam_w_mode=False), ours)
    train(torch.optim.Adam(groups(theirs), lr=3e-3, fused=True), theirs)
    assert all(torch.equal(mine, reference) for mine, reference in zip(ours, theirs, strict=True))


NAMES = {
    "embedding.word_embeddings.weight": 2,
    "embedding.position_embeddings.weight": 2,
    "decoder.layers.0.self_attention.linear_qkv.weight": 2,
    "decoder.layers.0.self_attention.linear_qkv.bias": 1,
    "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight": 1,
    "decoder.layers.0.self_attention.linear_qkv.layer_norm_bias": 1,
    "decoder.layers.0.self_attention.q_layernorm.weight": 1,
    "decoder.final_layernorm.weight": 1,
    "decoder.final_layernorm.bias": 1,
    "output_layer.weight": 2,
}


@pytest.mark.parametrize(
    ("options", "decayed"),
    [
        ({}, {"word", "position", "linear_qkv.weight", "output"}),
        ({"decay_embeddings": False}, {"linear_qkv.weight", "output"}),
        (
            {"decay_norms": True},
            {"word", "position", "linear_qkv.weight", "output", "norm_weight", "q_layernorm", "final_layernorm.weight"},
        ),
        (
            {"apply_wd_to_qk_layernorm": True},
            {"word", "position", "linear_qkv.weight", "output", "q_layernorm"},
        ),
    ],
)
def test_what_is_decayed(options: dict[str, bool], decayed: set[str]) -> None:
    spec = OptimizerSpec(lr=1.0, **options)
    found = {name for name, dims in NAMES.items() if is_decayed(spec, torch.zeros((2,) * dims), name)}
    assert found == {name for name in NAMES if any(part in name for part in decayed)}
