"""Parameters of one transformer layer."""

from __future__ import annotations

from orchestrator.spec.model import ModelSpec


def layer_parameters(model: ModelSpec, tp: int) -> int:
    """Parameters of one transformer layer that each of `tp` tensor-parallel ranks holds."""
    h = model.hidden_size
    query = model.num_attention_heads * model.head_dim
    qkv = (query + 2 * model.query_groups * model.head_dim) // tp
    up = model.ffn_size * (2 if model.is_gated else 1) // tp
    weights = qkv * h + h * query // tp + up * h + h * model.ffn_size // tp
    biases = qkv if model.has_qkv_bias else 0
    if model.add_bias_linear:
        biases += h + up + h
    norms = 2 * norm_parameters(model, h)
    if model.qk_layernorm:
        norms += 2 * norm_parameters(model, model.head_dim)
    return weights + biases + norms


def norm_parameters(model: ModelSpec, width: int) -> int:
    """Parameters of one norm over `width` values."""
    return width if model.normalization == "RMSNorm" else 2 * width
