"""Experts that begin as the MLP of a dense model (sparse upcycling, Komatsuzaki et al. 2022): each is a copy of it, or
so many narrower ones share a copy out (He et al. 2024, virtual groups).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import ExpertFields


def granularity(model: ExpertFields) -> int:
    """How many experts a copy of the dense MLP, whose width is `ffn_hidden_size`, is shared out over."""
    return model.ffn_size // model.moe_ffn_size


def output_factor(model: ExpertFields) -> float:
    """What the second matrix of each expert is multiplied by, so that what a token's experts add up to is the output of
    the dense MLP. Their weights add up to 1, unless they are those of a softmax over all experts: then about to the
    chosen ones' share of all.
    """
    share = 1.0
    if model.moe_router_score_function == "softmax" and model.moe_router_pre_softmax:
        share = model.moe_router_topk / model.expert_count
    return granularity(model) / (share * (model.moe_router_topk_scaling_factor or 1.0))
