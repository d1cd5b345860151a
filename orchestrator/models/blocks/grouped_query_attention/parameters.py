"""The matrices and scores of grouped-query attention: its parameters and FLOPs follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import Matrix, Scores, norm_parameters

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def matrices(model: Fields) -> tuple[Matrix, ...]:
    """One for queries, their gates, keys and values, and one behind the heads."""
    h, query, key = model.hidden_size, model.num_attention_heads * model.head_dim, model.query_groups * model.head_dim
    parts = (query, query, key, key) if model.attention_output_gate else (query, key, key)
    return (
        Matrix("linear_qkv", h, sum(parts), "column", model.has_qkv_bias, holds=parts),
        Matrix("linear_proj", query, h, "row", model.add_bias_linear),
    )


def other_parameters(model: Fields, tp: int) -> int:
    """Beside the matrices: the norms of queries and keys, which every rank has whole, and the sinks of its heads."""
    sinks = model.num_attention_heads // tp if model.has_sinks else 0
    return sinks + (_norms(model) if model.qk_layernorm else 0)


def _norms(model: Fields) -> int:
    widths = normed_widths(model)
    return (
        sum(widths) if model.qk_layernorm_scope == "per_head" else sum(norm_parameters(model, each) for each in widths)
    )


def normed_widths(model: Fields) -> tuple[int, int]:
    """Values that the norm of the queries, and that of the keys, has a weight for."""
    if model.qk_layernorm_scope == "head":
        return model.head_dim, model.head_dim
    return model.num_attention_heads * model.head_dim, model.query_groups * model.head_dim


def rotated_layers(model: Fields) -> float:
    """Share of the layers with rotary positions."""
    if model.position_embedding_type != "rope":
        return 0.0
    without = 0 if model.no_rope_freq is None else model.num_layers // model.no_rope_freq
    return 1.0 - without / model.num_layers


def scores(model: Fields) -> Scores:
    """Those of its heads."""
    return Scores(model.num_attention_heads, model.head_dim, model.head_dim)


def cross_matrices(model: Fields) -> tuple[Matrix, ...]:
    """Of a decoder's attention to an encoder: one for queries, one for the keys and values of the encoder's tokens, and
    one behind the heads.
    """
    h, width, has_bias = model.hidden_size, model.num_attention_heads * model.head_dim, model.add_bias_linear
    return (
        Matrix("linear_q", h, width, "column", has_bias),
        Matrix("linear_kv", h, 2 * width, "column", has_bias, holds=(width, width)),
        Matrix("linear_proj", width, h, "row", has_bias),
    )
