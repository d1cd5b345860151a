"""The matrices and scores of latent attention: its parameters and FLOPs follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import Matrix, Scores, norm_parameters

if TYPE_CHECKING:
    from orchestrator.models.blocks.latent_attention.model_fields import LatentFields

FORMULA = (
    "in a layer with latent attention h*(q+2*k) + q*h is h*a*(n+e) + h*(z+e) + z*a*(n+u) + a*u*h, and the q of q*s is "
    "a*(n+e+u)/2; a heads, n, e and u widths of the unrotated and the rotated part of a head's key and of its value, z "
    "the rank of keys and values; with a rank y of queries h*a*(n+e) is h*y + y*a*(n+e)"
)


def kv_rank(model: LatentFields) -> int:
    """Width of the latent of keys and values."""
    assert model.kv_lora_rank is not None, "the model has latent attention"
    return model.kv_lora_rank


def matrices(model: LatentFields) -> tuple[Matrix, ...]:
    """To the latents, which every rank has whole, from them to the heads, and one behind the heads."""
    h, heads, rank = model.hidden_size, model.num_attention_heads, kv_rank(model)
    query, key_value = heads * key_width(model), heads * (model.qk_head_dim + model.v_head_dim)
    down, up = "linear_kv_down_proj", "linear_kv_up_proj"
    if model.q_lora_rank is None:
        queries: tuple[Matrix, ...] = (Matrix("linear_q_proj", h, query, "column", False),)
    else:
        queries = (
            Matrix("linear_q_down_proj", h, model.q_lora_rank, "replicated", False),
            Matrix("linear_q_up_proj", model.q_lora_rank, query, "column", False, behind=("linear_q_down_proj",)),
        )
    return (
        *queries,
        Matrix(down, h, rank + model.qk_pos_emb_head_dim, "replicated", False),
        Matrix(up, rank, key_value, "column", False, behind=(down,)),
        Matrix(
            *("linear_proj", heads * model.v_head_dim, h, "row", model.add_bias_linear),
            behind=(queries[-1].name, down, up),
        ),
    )


def other_parameters(model: LatentFields, tp: int) -> int:
    """Beside the matrices: the norms of the latents, which every rank has whole."""
    return norm_parameters(model, (model.q_lora_rank or 0) + kv_rank(model)) if model.qk_layernorm else 0


def scores(model: LatentFields) -> Scores:
    """Those of its heads."""
    return Scores(model.num_attention_heads, key_width(model), model.v_head_dim)


def key_width(model: LatentFields) -> int:
    """Of a head's query, and of its key: the part that is not rotated, and the one that is."""
    return model.qk_head_dim + model.qk_pos_emb_head_dim
