"""What the rules of blocks ask of a job. For the type checker: nothing imports it when it runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypeVar

Model = TypeVar("Model", covariant=True)


class Parallelism(Protocol):
    """Over how many ranks a model is split."""

    @property
    def tensor_model_parallel_size(self) -> int: ...
    @property
    def pipeline_model_parallel_size(self) -> int: ...
    @property
    def context_parallel_size(self) -> int: ...
    @property
    def model_parallel_size(self) -> int: ...
    @property
    def expert_model_parallel_size(self) -> int: ...
    @property
    def expert_tensor_parallel_size(self) -> int | None: ...
    @property
    def expert_tensor_parallel(self) -> int: ...
    @property
    def uses_sequence_parallel(self) -> bool: ...


class Data(Protocol):
    """What it is trained on."""

    @property
    def has_conversations(self) -> bool: ...


class Runtime(Protocol):
    """With what it is trained."""

    @property
    def device(self) -> str: ...
    @property
    def layers(self) -> str: ...
    @property
    def recompute_modules(self) -> Collection[str] | None: ...
    @property
    def cpu_offloading_num_layers(self) -> int | None: ...


class Precision(Protocol):
    """In what format it computes."""

    @property
    def fp8(self) -> object | None: ...


class Job(Protocol[Model]):
    """A job, whose model has the fields that a block asks for."""

    @property
    def model(self) -> Model: ...
    @property
    def parallelism(self) -> Parallelism: ...
    @property
    def data(self) -> Data: ...
    @property
    def precision(self) -> Precision: ...
    @property
    def runtime(self) -> Runtime: ...
    @property
    def world_size(self) -> int: ...
    @property
    def has_per_token_loss(self) -> bool: ...
