"""Layers whose norms stand behind attention and MLP, after the residual is added (Vaswani et al. 2017; the first BERT).

What adds the residual normalises the sum.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from orchestrator.runtime.layers.normalization.branches import KEYS, AddResidual
from orchestrator.runtime.layers.normalization.norms import Norm
from orchestrator.spec.sections.runtime import Layers


class AddAndNormalise(torch.nn.Module):
    """Bias, dropout and residual as megatron-core's layers add them, and then a norm of the sum."""

    def __init__(self, config: TransformerConfig, norm: Callable[..., torch.nn.Module]) -> None:
        super().__init__()
        self.norm = norm(config=config, hidden_size=config.hidden_size, eps=config.layernorm_epsilon)

    def forward(self, training: bool, fused: bool) -> AddResidual:
        """A function of (output, bias), residual and dropout, which returns [s, b, h], s over TP under SP."""
        add = get_bias_dropout_add(training, fused)
        return lambda output, residual, dropout: self.norm(add(output, residual, dropout))


def normalise_behind(block: TransformerBlockSubmodules, layers: Layers, config: TransformerConfig) -> None:
    """Normalise the sums in a block's layers, which have no other norms; none is left behind the last layer."""
    norm: Callable[..., torch.nn.Module] = Norm
    if layers == "transformer_engine":
        norm = importlib.import_module("megatron.core.extensions.transformer_engine").TENorm
    for layer in block.layer_specs:
        parts = layer.submodules
        parts.self_attn_bda = ModuleSpec(AddAndNormalise, {"config": config, "norm": norm})
        parts.mlp_bda = ModuleSpec(AddAndNormalise, {"config": config, "norm": norm})
        parts.sharded_state_dict_keys_map = KEYS
    block.layer_norm = None


def normalise_embedding(embedding: torch.nn.Module, config: TransformerConfig) -> None:
    """Normalise what megatron-core's embedding gives, before its dropout."""
    norm = Norm(config, config.hidden_size, config.layernorm_epsilon)
    embedding.add_module("layer_norm", norm)
    dropout = embedding.get_submodule("embedding_dropout")
    dropout.register_forward_pre_hook(lambda module, arguments: norm(*arguments))
