"""What experts move in memory and between ranks, beside their matrices.

Tokens are taken to be spread evenly over the experts: below a capacity factor of 1 each drops the same part. An
uneven step takes as long as its busiest rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import NOTHING, Exchange, FeedForwardWork, ForwardBackward

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import ExpertFields


def inner(model: ExpertFields, work: FeedForwardWork) -> float:
    """Elements inside the experts of a rank, and inside the one that every token passes."""
    of_shared = work.tokens * model.shared_expert_size / work.degrees.tp
    return of_shared + _rows(model, work) * model.moe_ffn_size / work.degrees.etp


def moved(model: ExpertFields, work: FeedForwardWork) -> ForwardBackward:
    """Bytes that routing reads and writes, and sorting tokens by expert and back."""
    row = model.hidden_size * work.width
    is_sorted = model.expert_count // work.degrees.ep > 1
    found = NOTHING.plus(work.costs.moved, _kept(model, work) * row)
    found = found.plus(work.costs.sorted, _rows(model, work) * row if is_sorted else 0.0)
    return found.plus(work.costs.routed, work.own_tokens * model.expert_count)


def exchanged(model: ExpertFields, work: FeedForwardWork) -> Exchange:
    """What brings tokens to the ranks of their experts."""
    if model.moe_token_dispatcher_type == "allgather":
        return Exchange(gathered=work.degrees.etp * work.degrees.ep * work.own_tokens * model.hidden_size)
    return Exchange(sent=_kept(model, work) * model.hidden_size, split=_rows(model, work) * model.hidden_size)


def more_launches(model: ExpertFields, work: FeedForwardWork) -> ForwardBackward:
    """Kernels that the host starts beside those of a layer with a dense MLP."""
    each = 0 if work.groups_experts else model.expert_count // work.degrees.ep
    return work.costs.launches.plus(work.costs.launches_of_expert, each)


def waiting(work: FeedForwardWork) -> float:
    """The host learns how many tokens each expert has."""
    return work.costs.counting_seconds


def _kept(model: ExpertFields, work: FeedForwardWork) -> float:
    """Tokens of this rank, each as often as an expert takes it."""
    return work.own_tokens * model.moe_router_topk * model.moe_kept_share


def _rows(model: ExpertFields, work: FeedForwardWork) -> float:
    """Tokens that the experts of a rank compute on, each as often as it is routed to one of them."""
    return _kept(model, work) * work.degrees.etp
