"""Experts, and what routes tokens to them, in megatron-core's layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.transformer.moe.router import TopKRouter

from orchestrator.models.blocks.base import LayerSetup

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import ExpertFields

_KEYS = {
    "aux_loss": "load_balancing_loss",
    "seq_aux_loss": "seq_load_balancing_loss",
    "global_aux_loss": "global_load_balancing_loss",
}
"""megatron-core's names of the losses that balance experts."""
_COUNTERS = ("expert_bias", "local_tokens_per_expert", "global_tokens_per_expert", "ga_steps")


def settings(model: ExpertFields, setup: LayerSetup) -> dict[str, Any]:
    """Attributes of the layers' configuration."""
    if not model.has_experts:
        return {}
    every = all(model.moe_layers)
    return {
        "num_moe_experts": model.num_experts,
        # Only where layers differ a list, which gives each of them keys of its own in a checkpoint.
        "moe_layer_freq": 1 if every else [int(has) for has in model.moe_layers],
        "moe_ffn_hidden_size": model.moe_ffn_size,
        "moe_shared_expert_intermediate_size": model.moe_shared_expert_intermediate_size,
        "moe_shared_expert_gate": model.moe_shared_expert_gate,
        "moe_router_topk": model.moe_router_topk,
        "moe_router_score_function": model.moe_router_score_function,
        "moe_router_pre_softmax": model.moe_router_pre_softmax,
        "moe_router_topk_scaling_factor": model.moe_router_topk_scaling_factor,
        "moe_apply_probs_on_input": model.moe_apply_probs_on_input,
        "moe_router_num_groups": model.moe_router_num_groups,
        "moe_router_group_topk": model.moe_router_group_topk,
        "moe_router_enable_expert_bias": model.moe_router_enable_expert_bias,
        # Adapters leave the router as it is, and with it the bias by which it chooses.
        "moe_router_bias_update_rate": 0.0 if model.has_adapters else model.moe_router_bias_update_rate,
        "moe_router_dtype": model.moe_router_dtype,
        "moe_router_load_balancing_type": model.moe_router_load_balancing_type,
        "moe_aux_loss_coeff": _loss_weights(model, setup.replicas),
        "moe_z_loss_coeff": model.moe_z_loss_coeff,
        "moe_expert_capacity_factor": model.moe_expert_capacity_factor,
        "moe_token_dispatcher_type": model.moe_token_dispatcher_type,
        "expert_model_parallel_size": setup.degrees.ep,
        "expert_tensor_parallel_size": setup.degrees.etp,
    }


def losses(model: ExpertFields) -> dict[str, str]:
    """Those that balance experts."""
    if not model.has_experts:
        return {}
    kinds = model.auxiliary_losses
    found = {f"moe/{_KEYS[kind] if len(kinds) > 1 else 'load_balancing_loss'}": _KEYS[kind] for kind in kinds}
    if model.moe_z_loss_coeff is not None:
        found["moe/z_loss"] = "z_loss"
    return found


def _loss_weights(model: ExpertFields, replicas: int) -> float | list[float]:
    """Of each loss that balances the load. megatron-core sums the parts of the global one over replicas, whose
    gradients it averages: its weight would be another at every DP.
    """
    kinds, weights = model.moe_router_load_balancing_type, model.moe_aux_loss_coeff
    scaled = [
        weight * (replicas if kind == "global_aux_loss" else 1)
        for kind, weight in zip(
            *((each if isinstance(each, list) else [each]) for each in (kinds, weights)), strict=True
        )
    ]
    return scaled if isinstance(weights, list) else scaled[0]


def prepare(chunks: Iterable[Any], model: ExpertFields) -> None:
    """Have the routers of built chunks count in fp32, and choose groups as the model does."""
    for chunk in chunks:
        for module in chunk.modules():
            if not isinstance(module, TopKRouter):
                continue
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
