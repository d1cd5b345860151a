"""Parameters of one transformer layer."""

from __future__ import annotations

from orchestrator.planning.parameters.adapters import adapter_parameters
from orchestrator.spec.model import ModelSpec


def layer_parameters(model: ModelSpec, tp: int) -> int:
    """Parameters of one transformer layer with a dense MLP that each of `tp` tensor-parallel ranks holds."""
    attention, mlp = attention_parameters(model, tp), mlp_parameters(model, model.ffn_size, tp)
    return attention + mlp + 2 * norm_parameters(model, model.hidden_size) + adapter_parameters(model, tp)


def attention_parameters(model: ModelSpec, tp: int) -> int:
    """Parameters of one attention, without the norm before it, that each of `tp` ranks holds."""
    h = model.hidden_size
    query = model.num_attention_heads * model.head_dim
    qkv = (query + 2 * model.query_groups * model.head_dim) // tp
    attention = qkv * h + h * query // tp
    if model.has_qkv_bias:
        attention += qkv
    if model.add_bias_linear:
        attention += h
    if model.qk_layernorm:
        attention += 2 * norm_parameters(model, model.head_dim)
    return attention


def mlp_parameters(model: ModelSpec, ffn: int, tp: int) -> int:
    """Parameters of an MLP of width `ffn` that each of `tp` ranks holds; 0 where there is none."""
    h, up = model.hidden_size, ffn * (2 if model.is_gated else 1) // tp
    biases = up + h if model.add_bias_linear and ffn else 0
    return up * h + h * ffn // tp + biases


def norm_parameters(model: ModelSpec, width: int) -> int:
    """Parameters of one norm over `width` values."""
    return width if model.normalization == "RMSNorm" else 2 * width
