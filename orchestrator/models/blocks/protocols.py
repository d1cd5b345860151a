"""What is asked of a block's parts. For the type checker: nothing imports it when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from orchestrator.models.blocks.base import (
    CoreKernels,
    CoreWork,
    Exchange,
    FeedForwardKernels,
    FeedForwardWork,
    ForwardBackward,
    LayerTools,
    Matrix,
    RankShape,
    Scores,
)
from orchestrator.models.blocks.weights import PublishedAttention, Shapes


class MatricesPart(Protocol):
    """`matrices.py` of any block: what parameters, FLOPs and the products' seconds follow from."""

    def matrices(self, model: Any) -> tuple[Matrix, ...]: ...

    def other_parameters(self, model: Any, tp: int) -> int: ...


class AttentionMatrices(MatricesPart, Protocol):
    """The same of an attention."""

    def scores(self, model: Any) -> Scores: ...


class StateSpaceMatrices(MatricesPart, Protocol):
    """The same of a state space layer."""

    def scan_flops(self, model: Any) -> int: ...


class MemoryPart(Protocol):
    """`memory.py`: bytes that are kept between the matrices, and what the backward pass takes."""

    def saved(self, model: Any, shape: RankShape, kernels: CoreKernels) -> int: ...

    def backward(self, model: Any, shape: RankShape, kernels: CoreKernels) -> int: ...


class FeedForwardMemory(Protocol):
    """`memory.py` of an MLP or of experts: bytes kept behind the norm, those of them that linear layers take as inputs,
    what the backward pass takes beyond what is kept, and what lies there all the time.
    """

    def saved(self, model: Any, shape: RankShape) -> int: ...

    def inputs(self, model: Any, shape: RankShape) -> int: ...

    def backward(self, model: Any, shape: RankShape, kernels: FeedForwardKernels) -> int: ...

    def buffers(self, model: Any, shape: RankShape) -> int: ...


class StateSpaceMemory(Protocol):
    """`memory.py` of a state space layer."""

    def saved(self, model: Any, shape: RankShape) -> int: ...

    def backward(self, model: Any, shape: RankShape) -> int: ...


class TimePart(Protocol):
    """`time.py`: what is moved in memory and between ranks beside matrices and scores."""

    def moved(self, model: Any, work: CoreWork) -> ForwardBackward: ...

    def exchanged(self, model: Any) -> int: ...

    def gathered(self, model: Any, tp: int) -> int: ...

    def more_launches(self, model: Any) -> ForwardBackward: ...


class FeedForwardTime(Protocol):
    """`time.py` of an MLP or of experts: elements inside it; bytes moved, elements exchanged, kernels started and
    seconds that the host waits in a forward pass because tokens go to some experts only.
    """

    def inner(self, model: Any, work: FeedForwardWork) -> float: ...

    def moved(self, model: Any, work: FeedForwardWork) -> ForwardBackward: ...

    def exchanged(self, model: Any, work: FeedForwardWork) -> Exchange | None: ...

    def more_launches(self, model: Any, work: FeedForwardWork) -> ForwardBackward: ...

    def waiting(self, work: FeedForwardWork) -> float: ...


class StateSpaceTime(Protocol):
    """`time.py` of a state space layer."""

    def moved(
        self, model: Any, projected: ForwardBackward, convolved: ForwardBackward, inner: ForwardBackward
    ) -> ForwardBackward: ...


class WeightsPart(Protocol):
    """`weights.py`: names and shapes in a checkpoint, and in published models."""

    def weights(self, model: Any) -> Shapes: ...

    def published(self) -> tuple[PublishedAttention, ...]: ...


class LayersPart(Protocol):
    """`layers.py`, which alone may import torch: how megatron-core's layers attend so."""

    def settings(self, model: Any) -> dict[str, Any]: ...

    def place(self, layer: Any, config: Any, tools: LayerTools) -> None: ...

    def keep(self, attention: Any, with_cache: Callable[[Any], Any]) -> Any: ...
