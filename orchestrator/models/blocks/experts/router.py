"""The router of tokens to experts: megatron-core's, which counts in fp32 and chooses groups as a model does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.transformer.moe.router import TopKRouter

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import ExpertFields

_COUNTERS = ("expert_bias", "local_tokens_per_expert", "global_tokens_per_expert", "ga_steps")


def set_router(module: Any, model: ExpertFields) -> None:
    """Have a built module count in fp32, and choose groups as the model does, if it is a router."""
    if not isinstance(module, TopKRouter):
        return
    for name in _COUNTERS:  # in bf16 a count above 256 is rounded
        buffer: torch.Tensor | None = getattr(module, name)
        if buffer is not None:
            buffer.data = buffer.data.float()
    if model.moe_router_group_score_topk is not None:
        vars(module)["router_replay"] = _GroupLimitedChoice(model.moe_router_group_score_topk)


class _GroupLimitedChoice:
    """In place of megatron-core's record of earlier choices, which its routers ask for the experts of each token: its
    own choice takes topk / group_topk scores of a group, whatever the model.
    """

    layer_number: int | None = None

    def __init__(self, score_topk: int) -> None:
        self._score_topk = score_topk

    def get_replay_topk(
        self, scores: torch.Tensor, topk: int, num_groups: int, group_topk: int, default: Callable[..., Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Values and indices [tokens, topk] of the highest scores [tokens, experts] in the highest groups."""
        grouped = scores.view(scores.size(0), num_groups, -1)
        of_groups = grouped.topk(self._score_topk, dim=-1).values.sum(-1)
        others = torch.ones_like(of_groups, dtype=torch.bool).scatter(
            1, of_groups.topk(group_topk, dim=-1).indices, False
        )
        values, indices = grouped.masked_fill(others.unsqueeze(-1), float("-inf")).flatten(1).topk(topk, dim=1)
        return values, indices
