"""Experts in megatron-core's layers; what routes tokens to them is in `router`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from orchestrator.models.blocks.base import LayerSetup
from orchestrator.models.blocks.experts.router import set_router

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import ExpertFields

_KEYS = {
    "aux_loss": "load_balancing_loss",
    "seq_aux_loss": "seq_load_balancing_loss",
    "global_aux_loss": "global_load_balancing_loss",
}
"""megatron-core's names of the losses that balance experts."""


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
    """Set the routers of built chunks."""
    for chunk in chunks:
        for module in chunk.modules():
            set_router(module, model)
