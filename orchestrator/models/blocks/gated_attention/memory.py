"""What it keeps for its backward pass. Bytes of one rank and micro-batch."""

from __future__ import annotations

from orchestrator.models.blocks.attention import memory as plain
from orchestrator.models.blocks.attention.memory import backward
from orchestrator.models.blocks.base import CoreKernels, RankShape
from orchestrator.models.blocks.protocols import Fields

__all__ = ["backward", "saved"]


def saved(model: Fields, shape: RankShape, kernels: CoreKernels) -> int:
    """The gate and the gated heads more than plain attention, which keeps what the heads give."""
    return plain.saved(model, shape, kernels) + 2 * plain.head_sizes(model, shape).query
