"""The tensors of a checkpoint under other keys, several as one, or one in parts: a view, nothing is written."""

from __future__ import annotations

import io
from collections.abc import Mapping

import torch

from orchestrator.conversion.megatron.checkpoint_keys import Sources
from orchestrator.conversion.tensors.stored_weights import Tensors


class RenamedWeights:
    """What `copy_tensors` asks of a checkpoint, by other keys."""

    def __init__(self, stored: Tensors, sources: Sources, objects: Mapping[str, str]) -> None:
        self._stored, self._sources, self._objects = stored, sources, objects

    def keys(self) -> list[str]:
        """Of all tensors, sorted."""
        return sorted(self._sources)

    def objects(self) -> list[str]:
        """Keys of what is no tensor, sorted."""
        return sorted(self._objects)

    def read_object(self, key: str) -> io.BytesIO:
        """The bytes of what is no tensor."""
        return self._stored.read_object(self._objects[key])

    def shape(self, key: str) -> tuple[int, ...]:
        first, *others = self._sources[key]
        shape = self._stored.shape(first.key)[len(first.place) :]
        return (1 + len(others), *shape) if others else shape

    def dtype(self, key: str) -> torch.dtype:
        return self._stored.dtype(self._sources[key][0].key)

    def places(self, key: str) -> int:
        """How many of a tensor's first dimensions it is stored in single parts along."""
        first, *others = self._sources[key]
        return max(self._stored.places(first.key) - len(first.place), 0) + (1 if others else 0)

    def read(self, key: str, place: tuple[int, ...]) -> torch.Tensor:
        """A tensor, or its part at a place. Raises CheckpointError when it is damaged."""
        source, *others = self._sources[key]
        if others:
            source, place = self._sources[key][place[0]], place[1:]
        return self._stored.read(source.key, (*source.place, *place))
