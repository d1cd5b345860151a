"""The matrices of a layer's experts: its parameters and FLOPs follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import Matrix, Routing
from orchestrator.models.blocks.mlp import parameters as mlp
from orchestrator.models.blocks.mlp.parameters import other_parameters as other_parameters

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import ExpertFields


def matrices(model: ExpertFields) -> tuple[Matrix, ...]:
    """The router, the MLP that every token passes, and those that it is routed to."""
    routing = Routing(model.expert_count, model.moe_router_topk, model.moe_kept_share)
    return (
        Matrix("router", model.hidden_size, model.expert_count, "replicated", model.add_bias_linear),
        *mlp.matrices_of_width(model, model.shared_expert_size),
        *([Matrix("gate", model.hidden_size, 1, "replicated", has_bias=False)] if model.moe_shared_expert_gate else []),
        *(each._replace(routing=routing) for each in mlp.matrices_of_width(model, model.moe_ffn_size)),
    )
