"""What ranks that share a sequence bring each other for a state space layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.state_space.parameters import shared_width, state_space_width

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import StateSpaceFields


def redistributed(model: StateSpaceFields, tp: int, cp: int) -> int:
    """They share out its heads between the matrices: what the first one gives goes to the rank that has its head, and
    comes back as the input of the second one (megatron-core's MambaContextParallel).
    """
    return shared_width(model, tp, cp) + state_space_width(model)
