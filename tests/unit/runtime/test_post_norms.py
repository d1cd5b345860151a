"""Norms behind the branches of layers of either version of megatron-core."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from support.engine_layers import transformer_engine_layers

from orchestrator.runtime.layers.normalization.post_norms import normalise_behind


@pytest.mark.parametrize(
    "mlp_of",
    [lambda parts: ModuleSpec(MLP, submodules=parts), lambda parts: functools.partial(MLP, submodules=parts)],
    ids=["0.16", "0.19"],
)
def test_no_part_of_transformer_engine_normalises_before_a_branch(
    monkeypatch: pytest.MonkeyPatch, mlp_of: Callable[[MLPSubmodules], Any]
) -> None:
    transformer_engine_layers(monkeypatch)
    layer = get_gpt_layer_local_spec()
    mlp = MLPSubmodules(linear_fc1=torch.nn.Linear, linear_fc2=torch.nn.Linear)
    layer.submodules.mlp = mlp_of(mlp)
    block = TransformerBlockSubmodules(layer_specs=[layer], layer_norm=torch.nn.LayerNorm)
    config: Any = None  # what builds the norms is not called here
    normalise_behind(block, "transformer_engine", config)
    assert mlp.linear_fc1 is layer.submodules.self_attention.submodules.linear_qkv is torch.nn.Identity
    assert layer.submodules.input_layernorm is layer.submodules.pre_mlp_layernorm is IdentityOp
    assert block.layer_norm is None
