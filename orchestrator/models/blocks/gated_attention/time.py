"""What it moves in memory and between ranks, beside its matrices and its scores."""

from __future__ import annotations

from orchestrator.models.blocks.attention import time as plain
from orchestrator.models.blocks.attention.matrices import scores
from orchestrator.models.blocks.attention.time import exchanged, gathered
from orchestrator.models.blocks.base import CoreWork, ForwardBackward
from orchestrator.models.blocks.protocols import Fields

__all__ = ["exchanged", "gathered", "more_launches", "moved"]

_GATING = ForwardBackward(5, 7)
"""Accesses of what the heads give: the sigmoid, and the product with it."""


def moved(model: Fields, work: CoreWork) -> ForwardBackward:
    """As plain attention, and the gating."""
    return plain.moved(model, work).plus(_GATING, work.tokens * scores(model).output / work.tp)


def more_launches(model: Fields) -> ForwardBackward:
    """The gate's product, the sigmoid, and the product with it; and back."""
    return ForwardBackward(3, 5)
