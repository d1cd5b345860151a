"""What an MLP moves beside its matrices: nothing but its activation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import NOTHING, Exchange, FeedForwardWork, ForwardBackward

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def inner(model: Fields, work: FeedForwardWork) -> float:
    """Elements inside it, without a gate."""
    return work.tokens * model.ffn_size / work.degrees.tp


def moved(model: Fields, work: FeedForwardWork) -> ForwardBackward:
    """Tokens stay where they are."""
    return NOTHING


def exchanged(model: Fields, work: FeedForwardWork) -> Exchange | None:
    """Nor do they go to other ranks."""
    return None


def more_launches(model: Fields, work: FeedForwardWork) -> ForwardBackward:
    """A layer's are those of one with an MLP."""
    return NOTHING


def waiting(work: FeedForwardWork) -> float:
    """The host knows how many tokens it has."""
    return 0.0
