"""What models may have by their blocks, and not every family or attention goes with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from orchestrator.models.registry import GPT, ModelFamily


class Asked(NamedTuple):
    """How a model asks for a feature."""

    field: str
    """That of `model` which messages point at."""
    is_used: Callable[[Any], bool]
    """Whether a model, of whose fields it reads some, has the feature."""


class BlockFeature(NamedTuple):
    """A feature of models in the row of its block."""

    name: str
    """By which rules, and the rows of attentions, mean it."""
    asked: Asked | None = None
    """None where it has nothing to do with attention, or where rules of the block say with which it goes. Any other one
    goes with an attention whose row lists it."""
    families: tuple[ModelFamily, ...] = (GPT,)
    """Whose models may have it."""
