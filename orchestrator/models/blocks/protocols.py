"""What is asked of a block's parts. For the type checker and a test: nothing else imports it when it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol, TypeAlias

from orchestrator.errors import Problem
from orchestrator.models.blocks.base import (
    CoreKernels,
    CoreWork,
    ForwardBackward,
    LayerSetup,
    LayerTools,
    Matrix,
    RankShape,
    RoutedTokens,
    Scan,
    Scores,
)
from orchestrator.models.blocks.job_fields import Job
from orchestrator.models.blocks.weights import Shapes

Rule: TypeAlias = Callable[[Job[Any]], Iterator[Problem]]
"""Yields what is wrong with a job. A rule that reads a field that is not known is skipped."""
Topic = Literal["ranks", "sizes", "positions", "experts", "variants", "state_space"]
"""What a rule is about. What is wrong with a job is reported by topic: what tensor-parallel ranks cannot share, sizes
that do not divide each other, positions, experts, variants of an attention, state space layers.
"""
RulesByTopic: TypeAlias = Mapping[Topic, tuple[Rule, ...]]


class RulesPart(Protocol):
    """`rules.py` of any block: what its fields go with."""

    @property
    def RULES(self) -> RulesByTopic: ...  # noqa: N802 - a constant of the module

    @property
    def TENSOR_PARALLEL(self) -> tuple[Rule, ...]:  # noqa: N802
        """Those of the rules that say whether tensor-parallel ranks can share its matrices."""


class ParametersPart(Protocol):
    """`parameters.py` of any block: what parameters, FLOPs and the products' seconds follow from."""

    def matrices(self, model: Any) -> tuple[Matrix, ...]: ...

    def other_parameters(self, model: Any, tp: int) -> int: ...


class AttentionParameters(ParametersPart, Protocol):
    """The same of an attention."""

    def scores(self, model: Any) -> Scores: ...


class StateSpaceParameters(ParametersPart, Protocol):
    """The same of a state space layer."""

    def scan(self, model: Any) -> Scan: ...


class MemoryPart(Protocol):
    """`memory.py`: bytes that are kept between the matrices, and what the backward pass takes."""

    def saved(self, model: Any, shape: RankShape, kernels: CoreKernels) -> int: ...

    def backward(self, model: Any, shape: RankShape, kernels: CoreKernels) -> int: ...


class FeedForwardMemory(MemoryPart, Protocol):
    """The same of an MLP or of experts, and what of it linear layers take as inputs."""

    def inputs(self, model: Any, shape: RankShape, kernels: CoreKernels) -> int: ...


class RoutedMemory(FeedForwardMemory, Protocol):
    """Of experts, with what lies there all the time."""

    def copied_inputs(self, model: Any, shape: RankShape) -> int: ...

    def buffers(self, model: Any, shape: RankShape) -> int: ...


class MovingPart(Protocol):
    """`time.py` of a block: what is moved in memory and between ranks beside its matrices."""

    def moved(self, model: Any, work: CoreWork) -> ForwardBackward: ...

    def gathered(self, model: Any, tp: int) -> int: ...


class AttentionTime(MovingPart, Protocol):
    """The same of an attention, beside its scores too."""

    def exchanged(self, model: Any) -> int: ...

    def more_launches(self, model: Any) -> ForwardBackward: ...


class SharingTime(Protocol):
    """`time.py` of what passes a state, whose heads are shared out by ranks that share a sequence."""

    def redistributed(self, model: Any, tp: int, cp: int) -> int: ...


class LinearAttentionTime(AttentionTime, SharingTime, Protocol):
    """The same of linear attention."""


class RoutedTime(Protocol):
    """`time.py` of experts: what brings tokens to them."""

    def routed(self, model: Any, shape: RankShape) -> RoutedTokens: ...


class WeightsPart(Protocol):
    """`weights.py`: names and shapes in a checkpoint."""

    def weights(self, model: Any) -> Shapes: ...


class LayersPart(Protocol):
    """`layers.py` of any block, which alone may import torch: what megatron-core's layers are configured with."""

    def settings(self, model: Any, setup: LayerSetup) -> dict[str, Any]: ...


class RoutedLayers(LayersPart, Protocol):
    """The same of experts, with their losses, and what their routers do otherwise than megatron-core builds them."""

    def losses(self, model: Any) -> dict[str, str]: ...

    def prepare(self, chunks: Iterable[Any], model: Any) -> None: ...


class KeepingLayers(LayersPart, Protocol):
    """The same of what keeps something from token to token where a model generates."""

    def keep(self, layer: Any, with_cache: Callable[[Any], Any]) -> Any:
        """Let a built layer keep that; the module that is to be handed the cache. `with_cache`: from a core of
        attention one that keeps the keys and values that it is given.
        """


class MixerLayers(KeepingLayers, Protocol):
    """The same of an attention, and how layers attend so."""

    def place(self, layer: Any, config: Any, tools: LayerTools) -> None: ...
