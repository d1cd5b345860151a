"""Where the norms of a layer's attention and MLP are, and what adds these to the residual stream."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from torch.nn import functional

from orchestrator.kernel_selection.fused_kernels import lacks_tuned_norm
from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.layers.normalization.bias_dropout_add import Branch, add_plainly
from orchestrator.runtime.layers.normalization.parallel_residual import place_parallel

KEYS = {"self_attn_bda.norm.": "post_self_attn_layernorm.", "mlp_bda.norm.": "post_mlp_layernorm."}
"""What norms of outputs are called in checkpoints."""
AddResidual = Callable[[Branch, torch.Tensor, float], torch.Tensor]


def place_norms(layer: Any, config: LayerConfig, norm: Callable[..., torch.nn.Module], column: Any) -> Any:
    """megatron-core's specification of a layer, which has norms before its branches, with those that the model has.
    `column`: a linear layer that does not normalise its input.
    """
    parts = layer.submodules
    in_kernels = config.normalizes_in_kernels and lacks_tuned_norm(config.normalization, config.hidden_size)
    if in_kernels or not config.norm_bias:
        _part_norms(parts, norm, column)
    if not config.normalizes_inputs or config.parallel_residual == "one_norm":
        parts.input_layernorm = parts.pre_mlp_layernorm = IdentityOp
        _normalise_nothing(parts, column)
    if config.parallel_residual is not None:
        return place_parallel(layer, config, norm)
    if not config.normalizes_outputs and config.residual_multiplier == 1.0:
        return add_plainly(layer, config)
    behind = {"config": config, "norm": norm if config.normalizes_outputs else None}
    parts.self_attn_bda = ModuleSpec(AddBranch, behind)
    parts.mlp_bda = ModuleSpec(AddBranch, behind)
    parts.sharded_state_dict_keys_map = {**parts.sharded_state_dict_keys_map, **KEYS}
    return layer


def without_first_norm(layer: Any, column: Any) -> Any:
    """A layer's specification without the norm before attention, which reads what is normalised already; `column` as
    above.
    """
    # Other layers have the same specification, and what they share, as their masks, is shared by the first too.
    first, attention = copy.copy(layer), copy.copy(layer.submodules.self_attention)
    first.submodules = copy.copy(layer.submodules)
    attention.submodules = copy.copy(attention.submodules)
    first.submodules.input_layernorm, first.submodules.self_attention = IdentityOp, attention
    attention.submodules.linear_qkv = column
    return first


def _normalise_nothing(parts: Any, column: Any) -> None:
    """Let the first linear layers of attention and MLP take their inputs as they are."""
    parts.self_attention.submodules.linear_qkv = column
    mlp = submodules_of(parts.mlp)
    if hasattr(mlp, "linear_fc1"):  # experts have a norm of their own before them
        mlp.linear_fc1 = column


def _part_norms(parts: Any, norm: Callable[..., torch.nn.Module], column: Any) -> None:
    """Let the norms before attention and MLP be modules by themselves, called in checkpoints as parts of these."""
    _normalise_nothing(parts, column)
    parts.input_layernorm = parts.pre_mlp_layernorm = norm
    keys = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
    if hasattr(submodules_of(parts.mlp), "linear_fc1"):
        keys["pre_mlp_layernorm."] = "mlp.linear_fc1.layer_norm_"
    parts.sharded_state_dict_keys_map = {**parts.sharded_state_dict_keys_map, **keys}


def submodules_of(spec: Any) -> Any:
    """The parts of a module to build: megatron-core 0.16 has a ModuleSpec of an MLP, 0.19 a partial."""
    return spec.keywords["submodules"] if isinstance(spec, functools.partial) else spec.submodules


class AddBranch(torch.nn.Module):
    """Normalise what a branch gives, where there is a norm, and add it to the residual stream, times a factor."""

    def __init__(self, config: LayerConfig, norm: Callable[..., torch.nn.Module] | None) -> None:
        super().__init__()
        self.factor = config.residual_multiplier
        self.norm: torch.nn.Module | None = None
        if norm is not None:
            self.norm = norm(config=config, hidden_size=config.hidden_size, eps=config.layernorm_epsilon)

    def forward(self, training: bool, fused: bool) -> AddResidual:
        """A function of (output, bias), residual and dropout, which returns [s, b, h], s over TP under SP."""
        return self._add

    def _add(self, branch: Branch, residual: torch.Tensor, dropout: float) -> torch.Tensor:
        output, bias = branch
        if bias is not None:
            output = output + bias
        if self.norm is not None:
            output = self.norm(output)
        return torch.add(residual, functional.dropout(output, dropout, self.training), alpha=self.factor)
