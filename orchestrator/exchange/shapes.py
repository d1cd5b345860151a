"""The shape of each weight of a model, whole, as a checkpoint holds it for one layer or expert."""

from __future__ import annotations

from orchestrator.spec.model import ModelSpec


def shape_of(key: str, model: ModelSpec, rows: int) -> tuple[int, ...]:
    """Of a key of a table, without the dimensions of layers and experts; `rows` is how many tables of tokens have."""
    hidden, width, queries = model.hidden_size, model.head_dim, model.num_attention_heads * model.head_dim
    if key.endswith(("_layernorm.weight", "_layernorm.bias", "layer_norm_weight", "layer_norm_bias")):
        return (width,) if "self_attention." in key and "linear_qkv" not in key else (hidden,)
    name, _, kind = key.removeprefix("decoder.layers.").rpartition(".")
    matrix = {
        "embedding.word_embeddings": (rows, hidden),
        "output_layer": (rows, hidden),
        "embedding.position_embeddings": (model.positions, hidden),
        "self_attention.linear_qkv": (queries + 2 * model.query_groups * width, hidden),
        "self_attention.linear_proj": (hidden, queries),
        "mlp.linear_fc1": (model.ffn_size * (2 if model.is_gated else 1), hidden),
        "mlp.linear_fc2": (hidden, model.ffn_size),
        "mlp.router": (model.num_experts or 0, hidden),
        "mlp.experts.experts.linear_fc1": (model.moe_ffn_size * (2 if model.is_gated else 1), hidden),
        "mlp.experts.experts.linear_fc2": (hidden, model.moe_ffn_size),
    }[name]
    return matrix if kind == "weight" else matrix[:1]
