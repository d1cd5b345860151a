"""What blocks ask of a model and of what plans it, and what is asked of them. For the type checker: nothing imports it
when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

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


class Fields(Protocol):
    """What blocks ask of a model, by the names of its fields. Those of one block alone are a protocol of its own."""

    @property
    def num_layers(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def seq_length(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def query_groups(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def has_qkv_bias(self) -> bool: ...
    @property
    def add_bias_linear(self) -> bool: ...
    @property
    def qk_layernorm(self) -> bool: ...
    @property
    def normalization(self) -> Literal["LayerNorm", "RMSNorm"]: ...
    @property
    def is_gated(self) -> bool: ...
    @property
    def apply_layernorm_1p(self) -> bool: ...
    @property
    def position_embedding_type(self) -> str: ...
    @property
    def rotary_percent(self) -> float: ...
    @property
    def attention_logit_softcapping(self) -> float | None: ...


class Accesses(Protocol):
    """How often kernels read or write what passes between matrices and core (planning/time/kernels/accesses.py)."""

    @property
    def rope(self) -> ForwardBackward: ...
    @property
    def attention_layout(self) -> ForwardBackward: ...
    @property
    def joins(self) -> float: ...
    @property
    def returns_together(self) -> bool: ...
    @property
    def projection(self) -> ForwardBackward | None: ...


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
