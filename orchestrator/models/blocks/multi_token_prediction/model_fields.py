"""What multi-token prediction asks of a model. For the type checker: nothing imports it when it runs."""

from __future__ import annotations

from typing import Protocol

from orchestrator.models.blocks.model_fields import GroupedQueryFields


class PredictionFields(GroupedQueryFields, Protocol):
    """The fields of its own too."""

    @property
    def mtp_num_layers(self) -> int: ...
    @property
    def mtp_loss_scaling_factor(self) -> float: ...
    @property
    def predicts_further(self) -> bool: ...
    @property
    def has_vision(self) -> bool: ...
    @property
    def has_adapters(self) -> bool: ...
