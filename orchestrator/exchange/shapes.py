"""The shape of each weight of a model, whole, as a checkpoint holds it for one layer or expert."""

from __future__ import annotations

from orchestrator.exchange.table import VISION, stack_of
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.vision import VisionSpec


def shape_of(key: str, model: ModelSpec, rows: int) -> tuple[int, ...]:
    """Of a key of a table, without the dimensions of layers and experts; `rows` is how many tables of tokens have."""
    if key.startswith("vision.") and model.vision is not None:
        return _of_vision(key, model.vision, model.hidden_size)
    hidden, width, queries = model.hidden_size, model.head_dim, model.num_attention_heads * model.head_dim
    if key.rpartition(".")[0].endswith(("_layernorm", "layer_norm")) or "layer_norm_" in key:
        return (width,) if key.endswith(("q_layernorm.weight", "k_layernorm.weight")) else (hidden,)
    name, _, kind = key.removeprefix(stack_of(key)).rpartition(".")
    matrix = {
        "embedding.word_embeddings": (rows, hidden),
        "output_layer": (rows, hidden),
        "embedding.position_embeddings": (model.positions, hidden),
        "embedding.tokentype_embeddings": (model.tokentypes, hidden),
        "lm_head.dense": (hidden, hidden),
        "pooler.dense": (hidden, hidden),
        "binary_head": (2, hidden),
        "self_attention.linear_qkv": (queries + 2 * model.query_groups * width, hidden),
        "self_attention.linear_proj": (hidden, queries),
        "cross_attention.linear_q": (queries, hidden),
        "cross_attention.linear_kv": (2 * model.query_groups * width, hidden),
        "cross_attention.linear_proj": (hidden, queries),
        "encoder_relative_attention_bias": (model.relative_attention_num_buckets, model.num_attention_heads),
        "decoder_relative_attention_bias": (model.relative_attention_num_buckets, model.num_attention_heads),
        "mlp.linear_fc1": (model.ffn_size * (2 if model.is_gated else 1), hidden),
        "mlp.linear_fc2": (hidden, model.ffn_size),
        "mlp.router": (model.num_experts or 0, hidden),
        "mlp.experts.experts.linear_fc1": (model.moe_ffn_size * (2 if model.is_gated else 1), hidden),
        "mlp.experts.experts.linear_fc2": (hidden, model.moe_ffn_size),
    }[name]
    return matrix if kind == "weight" else matrix[:1]


def _of_vision(key: str, vision: VisionSpec, hidden: int) -> tuple[int, ...]:
    """Of a key of the encoder of images, or of the matrices behind it."""
    width, side = vision.hidden_size, vision.patch_size
    if "norm" in key or key == "vision.class_token":
        return (width,)
    if key == "vision.patches":
        return (width, 3, side, side)
    if key == "vision.positions":
        return (vision.positions, width)
    name, _, kind = key.removeprefix(VISION).rpartition(".")
    matrix = {
        "self_attention.linear_qkv": (3 * width, width),
        "self_attention.linear_proj": (width, width),
        "mlp.linear_fc1": (vision.ffn_size, width),
        "mlp.linear_fc2": (width, vision.ffn_size),
        "vision.projector.linear_fc1": (hidden, width),
        "vision.projector.linear_fc2": (hidden, hidden),
    }[name]
    return matrix if kind == "weight" else matrix[:1]
