"""What a model family decides about its data set."""

from __future__ import annotations

from typing import Any, Protocol

from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.data import DataSpec


class DatasetFamily(Protocol):
    """A module of this package that has this function."""

    def dataset(self, model: ModelSpec, data: DataSpec, settings: dict[str, Any]) -> tuple[type[Any], Any]:
        """megatron-core's data set class and its configuration; `settings` are those that all families share."""
        ...
