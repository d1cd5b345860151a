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
    etp, ep, sent = shape.degrees.etp, shape.degrees.ep, _taken(model, shape) * model.hidden_size
    gathers = model.moe_token_dispatcher_type == "allgather"
    return RoutedTokens(
        experts=model.expert_count // ep,
        scores=shape.own_tokens * model.expert_count,
        sent=sent,
        computed=sent * etp,
        gathered=etp * ep * shape.own_tokens * model.hidden_size if gathers else 0,
    )


def _taken(model: ExpertFields, shape: RankShape) -> float:
    """Tokens of this rank, each as often as an expert takes it."""
    return shape.own_tokens * model.moe_router_topk * model.moe_kept_share
