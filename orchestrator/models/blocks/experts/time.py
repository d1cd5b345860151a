"""What brings tokens to the ranks of their experts.

Tokens are taken to be spread evenly over the experts: below a capacity factor of 1 each drops the same part. An
uneven step takes as long as its busiest rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import RankShape, RoutedTokens

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import ExpertFields


def routed(model: ExpertFields, shape: RankShape) -> RoutedTokens:
    """What brings tokens to the ranks of their experts."""
    etp, ep, gathers = shape.degrees.etp, shape.degrees.ep, model.moe_token_dispatcher_type == "allgather"
    taken, is_clamped = _taken(model, shape), model.activation_func_clamp_value is not None
    return RoutedTokens(
        experts=model.expert_count // ep,
        scores=shape.own_tokens * model.expert_count,
        sent=taken * model.hidden_size,
        computed=taken * model.hidden_size * etp,
        gathered=etp * ep * shape.own_tokens * model.hidden_size if gathers else 0,
        chosen=model.moe_router_topk,
        among=(model.moe_router_group_topk or 1) / (model.moe_router_num_groups or 1),
        biased=taken * etp * model.hidden_size if model.add_bias_linear else 0,
        clamped=taken * model.moe_ffn_size if is_clamped else 0,
        # megatron-core's weighted quick GeGLU copies its offset to the GPU, and waits until that is done.
        other_waits=int(model.activation == "quick_geglu"),
    )


def _taken(model: ExpertFields, shape: RankShape) -> float:
    """Tokens of this rank, each as often as an expert takes it."""
    return shape.own_tokens * model.moe_router_topk * model.moe_kept_share
