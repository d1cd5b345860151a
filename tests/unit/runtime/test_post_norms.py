"""Layers without norms before their branches, of either version of megatron-core."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec

from orchestrator.runtime.layers.normalization.branches import place_norms


@pytest.mark.parametrize(
    "mlp_of",
    [lambda parts: ModuleSpec(MLP, submodules=parts), lambda parts: functools.partial(MLP, submodules=parts)],
    ids=["0.16", "0.19"],
)
def test_no_part_normalises_before_a_branch(mlp_of: Callable[[MLPSubmodules], Any]) -> None:
    layer = get_gpt_layer_local_spec()
    mlp = MLPSubmodules(linear_fc1=torch.nn.Linear, linear_fc2=torch.nn.Linear)
    layer.submodules.mlp = mlp_of(mlp)
    config: Any = SimpleNamespace(
        **{"normalizes_inputs": False, "normalizes_outputs": True, "residual_multiplier": 1.0},
        **{"bias_dropout_fusion": False, "parallel_residual": None, "norm_bias": True, "normalizes_in_kernels": False},
    )
    place_norms(layer, config, torch.nn.LayerNorm, torch.nn.Identity)
    assert mlp.linear_fc1 is layer.submodules.self_attention.submodules.linear_qkv is torch.nn.Identity
    assert layer.submodules.input_layernorm is layer.submodules.pre_mlp_layernorm is IdentityOp
