"""The one list of blocks. Each is a folder beside this file, whose parts are modules of the same names in every folder;
they are imported as they are asked for, the heavy one by the training alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, cast

from orchestrator.models.blocks.base import CoreKernels, CoreWork, ForwardBackward, Matrix, RankShape, Scores


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


@dataclass(frozen=True)
class AttentionBlock:
    """A way for tokens to attend to each other."""

    name: str
    """Its folder."""
    is_used: Callable[[Any], bool]
    """Whether a model's layers have it, by the model's fields."""

    @cached_property
    def matrices(self) -> MatricesPart:
        return cast(MatricesPart, self._part("matrices"))

    @cached_property
    def memory(self) -> MemoryPart:
        return cast(MemoryPart, self._part("memory"))

    @cached_property
    def time(self) -> TimePart:
        return cast(TimePart, self._part("time"))

    def _part(self, name: str) -> Any:
        return importlib.import_module(f"orchestrator.models.blocks.{self.name}.{name}")


ATTENTIONS: Final = (AttentionBlock("attention", is_used=lambda model: True),)
"""The first that a model has is its attention."""


def attention_of(model: Any) -> AttentionBlock:
    """What a model's tokens attend with."""
    return next(block for block in ATTENTIONS if block.is_used(model))
