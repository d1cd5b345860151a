"""The weights of experts in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.models.blocks.experts.parameters import matrices
from orchestrator.models.blocks.mlp import parameters as mlp
from orchestrator.models.blocks.weights import Shapes, linears

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import ExpertFields

OF_EACH: Final = "experts."
"""What names of weights begin with that each expert has."""
WITHOUT_GRADIENT: Final = ("router.expert_bias",)
"""How names of weights end that no optimizer moves."""


def weights(model: ExpertFields) -> Shapes:
    """Those of one layer, by their names in it, with their shapes: of one expert where each has them. The norm before
    experts is a module of its own.
    """
    router, *_ = matrices(model)
    found = linears([router])
    if model.moe_router_enable_expert_bias:
        found["router.expert_bias"] = (model.expert_count,)
    of_expert, shared = (
        linears(mlp.matrices_of_width(model, size)) for size in (model.moe_ffn_size, model.shared_expert_size)
    )
    found |= {f"{OF_EACH}experts.{name}": shape for name, shape in of_expert.items()}
    found |= {f"shared_experts.{name}": shape for name, shape in shared.items()}
    if model.moe_shared_expert_gate:
        found["shared_experts.gate_weight"] = (1, model.hidden_size)
    return found
