"""What latent attention moves in memory and between ranks, beside its matrices and its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import NOTHING, CoreWork, ForwardBackward
from orchestrator.models.blocks.latent_attention.parameters import key_width, kv_rank

if TYPE_CHECKING:
    from orchestrator.models.blocks.latent_attention.model_fields import LatentFields


def moved(model: LatentFields, work: CoreWork) -> ForwardBackward:
    """Elements that kernels read and write between the matrices: the norms of the latents, the rotation, and the copies
    that join the parts of queries and keys, and take values out of their projection.
    """
    heads = work.tokens * model.num_attention_heads / work.tp
    rotated = (heads + work.tokens) * model.qk_pos_emb_head_dim
    joined = heads * (2 * key_width(model) + model.v_head_dim)
    moved = NOTHING.plus(work.kernels.rope, rotated).plus(work.kernels.latent_copies, joined)
    latents = work.tokens * ((model.q_lora_rank or 0) + kv_rank(model))
    return moved.plus(work.norm, latents) if model.qk_layernorm else moved


def exchanged(model: LatentFields) -> int:
    """Elements of each token that ranks which share a sequence bring each other: its keys and values."""
    return model.num_attention_heads * (key_width(model) + model.v_head_dim)


def gathered(model: LatentFields, tp: int) -> int:
    """Elements of each token that tensor-parallel ranks gather: the key's rotated part, whose gradient they sum."""
    return model.qk_pos_emb_head_dim if tp > 1 else 0


def more_launches(model: LatentFields) -> ForwardBackward:
    """Kernels that the host starts more than of grouped-query attention: three more products, or one without a latent
    of queries, the norms of the latents, and the copies that join queries and keys.
    """
    products = 3 if model.q_lora_rank is not None else 2
    norms = (products - 1) if model.qk_layernorm else 0
    return ForwardBackward(products + norms + 3, 2 * products + norms + 3)
