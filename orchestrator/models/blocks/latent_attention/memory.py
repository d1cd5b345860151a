"""What latent attention keeps for its backward pass, between its matrices. Bytes of one rank and micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import FP32, CoreKernels, RankShape, norm_statistics
from orchestrator.models.blocks.latent_attention.parameters import key_width, kv_rank

if TYPE_CHECKING:
    from orchestrator.models.blocks.latent_attention.model_fields import LatentFields


def saved(model: LatentFields, shape: RankShape, kernels: CoreKernels) -> int:
    """From the outputs of the first matrices to the last one's input."""
    heads = shape.tokens * (model.num_attention_heads // shape.tp) * shape.width
    query, value = heads * key_width(model), heads * model.v_head_dim
    kept = _latents(model, shape) + 2 * query + value  # queries, keys and the output
    # Cosines and sines are made anew by every layer, for queries and keys together.
    kept += 2 * shape.positions * model.qk_pos_emb_head_dim * shape.width
    if kernels.is_recomputed:
        return kept + value
    kept += shape.tokens * (model.num_attention_heads // shape.tp) * FP32  # log-sum-exp
    padded = query if _pads(model, kernels) else value
    if shape.cp > 1 and kernels.layers == "torch":
        # Keys and values of the whole sequence, gathered, and the output's two halves; not those of this rank's part.
        return kept - query + shape.cp * (query + padded) + padded
    return kept + padded + (padded if _pads(model, kernels) else 0)


def backward(model: LatentFields, shape: RankShape, kernels: CoreKernels) -> int:
    """The most that its backward pass takes beyond what was saved: the gradients of the output, queries, keys and
    values, when the last matrix's input is free again. What an MLP behind it kept is free too, and not counted so: it
    may be recomputed.
    """
    heads = shape.tokens * (model.num_attention_heads // shape.tp) * shape.width
    widest = key_width(model) if _pads(model, kernels) else model.v_head_dim
    return shape.stream + heads * (2 * key_width(model) + 2 * widest - model.v_head_dim)


def _latents(model: LatentFields, shape: RankShape) -> int:
    """What norms take and give; without norms, what the second matrices take."""
    rank = kv_rank(model)
    kept = shape.own_tokens * (rank + model.qk_pos_emb_head_dim) * shape.width  # the latent is a view of it
    if model.q_lora_rank is not None:
        kept += shape.own_tokens * model.q_lora_rank * shape.width
    if not model.qk_layernorm:
        return kept
    normed = (rank, model.q_lora_rank) if model.q_lora_rank is not None else (rank,)
    return kept + sum(shape.own_tokens * (width * shape.width + norm_statistics(model)) for width in normed)


def _pads(model: LatentFields, kernels: CoreKernels) -> bool:
    """Whether values are made as wide as keys: torch's fused kernels have one width."""
    return kernels.layers == "torch" and model.v_head_dim < key_width(model)
