"""Parameters of one transformer layer."""

from __future__ import annotations

from orchestrator.models.blocks.base import norm_parameters
from orchestrator.models.blocks.mlp import matrices as mlp
from orchestrator.planning.parameters.adapters import adapter_parameters
from orchestrator.spec.model import ModelSpec


def layer_parameters(model: ModelSpec, tp: int) -> int:
    """Parameters of one transformer layer with a dense MLP that each of `tp` tensor-parallel ranks holds."""
    attention, mlp = attention_parameters(model, tp), mlp_parameters(model, model.ffn_size, tp)
    return attention + mlp + 2 * norm_parameters(model, model.hidden_size) + adapter_parameters(model, tp)


def attention_parameters(model: ModelSpec, tp: int) -> int:
    """Parameters of one attention, without the norm before it, that each of `tp` ranks holds."""
    block = model.attention.matrices
    return sum(each.parameters(tp) for each in block.matrices(model)) + block.other_parameters(model, tp)


def mlp_parameters(model: ModelSpec, ffn: int, tp: int) -> int:
    """Parameters of an MLP of width `ffn` that each of `tp` ranks holds; 0 where there is none."""
    return sum(each.parameters(tp) for each in mlp.matrices(model, ffn))
