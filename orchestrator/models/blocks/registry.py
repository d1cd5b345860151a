"""The one list of blocks. Each is a folder beside this file, whose parts are modules of the same names in every folder;
they are imported as they are asked for, the heavy one by the training alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, cast

from orchestrator.models.blocks.base import (
    CoreKernels,
    CoreWork,
    ForwardBackward,
    LayerTools,
    Matrix,
    RankShape,
    Scores,
)
from orchestrator.models.blocks.weights import PublishedAttention, Shapes
from orchestrator.models.registry import Feature


class MatricesPart(Protocol):
    """`matrices.py`: what parameters, FLOPs and the products' seconds follow from."""

    def matrices(self, model: Any) -> tuple[Matrix, ...]: ...

    def other_parameters(self, model: Any, tp: int) -> int: ...

    def scores(self, model: Any) -> Scores: ...


class MemoryPart(Protocol):
    """`memory.py`: bytes that are kept between the matrices, and what the backward pass takes."""

    def saved(self, model: Any, shape: RankShape, kernels: CoreKernels) -> int: ...

    def backward(self, model: Any, shape: RankShape, kernels: CoreKernels) -> int: ...


class TimePart(Protocol):
    """`time.py`: what is moved in memory and between ranks beside matrices and scores."""

    def moved(self, model: Any, work: CoreWork) -> ForwardBackward: ...

    def exchanged(self, model: Any) -> int: ...

    def gathered(self, model: Any, tp: int) -> int: ...

    def more_launches(self, model: Any) -> ForwardBackward: ...


class WeightsPart(Protocol):
    """`weights.py`: names and shapes in a checkpoint, and in published models."""

    def weights(self, model: Any) -> Shapes: ...

    def published(self) -> tuple[PublishedAttention, ...]: ...


class LayersPart(Protocol):
    """`layers.py`, which alone may import torch: how megatron-core's layers attend so."""

    def settings(self, model: Any) -> dict[str, Any]: ...

    def place(self, layer: Any, config: Any, tools: LayerTools) -> None: ...

    def keep(self, attention: Any, with_cache: Callable[[Any], Any]) -> Any: ...


@dataclass(frozen=True)
class AttentionBlock:
    """A way for tokens to attend to each other."""

    name: str
    """Its folder."""
    is_used: Callable[[Any], bool]
    """Whether a model's layers have it, by the model's fields."""
    field: str = "num_attention_heads"
    """That of these by which a person asks for it."""
    families: tuple[str, ...] | None = None
    """Which have it; None for all."""
    features: frozenset[Feature] | None = None
    """What models with it may be combined with, of what their family may; None for all."""
    declares: str = ""
    """The section in its fields.py whose fields `model` has, where there are some."""

    def supports(self, feature: Feature) -> bool:
        """Whether models with it may be combined with a feature."""
        return self.features is None or feature in self.features

    @cached_property
    def matrices(self) -> MatricesPart:
        return cast(MatricesPart, self.part("matrices"))

    @cached_property
    def memory(self) -> MemoryPart:
        return cast(MemoryPart, self.part("memory"))

    @cached_property
    def time(self) -> TimePart:
        return cast(TimePart, self.part("time"))

    @cached_property
    def weights(self) -> WeightsPart:
        return cast(WeightsPart, self.part("weights"))

    @cached_property
    def layers(self) -> LayersPart:
        return cast(LayersPart, self.part("layers"))

    def part(self, name: str) -> Any:
        """A module of its folder."""
        return importlib.import_module(f"orchestrator.models.blocks.{self.name}.{name}")


ATTENTIONS: Final = (AttentionBlock("attention", is_used=lambda model: True),)
"""The first that a model has is its attention."""


def declared_sections() -> tuple[type[Any], ...]:
    """The sections whose fields `model` has because of its blocks."""
    return tuple(getattr(block.part("fields"), block.declares) for block in ATTENTIONS if block.declares)


def attention_named(name: str) -> AttentionBlock:
    """The block in a folder."""
    return next(block for block in ATTENTIONS if block.name == name)


def attention_of(model: Any) -> AttentionBlock:
    """What a model's tokens attend with."""
    return next(block for block in ATTENTIONS if block.is_used(model))
