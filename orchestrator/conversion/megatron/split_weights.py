"""Weights whose rows lie in another order in Megatron-LM's checkpoints, each part under a key of its own (`StoredRows`
of a block's flags): one of its checkpoints read as if it had ours, and one of ours as if it had its. Nothing is
written.

The optimizer's state of a weight lies as the weight does. A norm that multiplies by 1 + weight there, and by its weight
here, is read with its weight changed by one; so is the optimizer's copy of it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import NamedTuple

import torch

from orchestrator.conversion.tensors.stored_weights import Tensors
from orchestrator.models.blocks.flags import StoredRows
from orchestrator.models.blocks.registry import block_flags
from orchestrator.spec.model import ModelSpec

_OF_BLOCKS = tuple(flags.arguments for flags in block_flags() if flags.arguments is not None)
_STATE, _COPY = "optimizer.state.", "optimizer.state.param."


class _NormWeights:
    """The tensors of a checkpoint, but for norms whose weights differ by one."""

    def __init__(self, stored: Tensors, model: ModelSpec | None, shift: float) -> None:
        self._stored, self._shift = stored, shift
        ends = (each.zero_centred for each in _OF_BLOCKS if model is not None and getattr(model, each.has))
        self._ends = tuple(end for end in ends if end is not None)
        self._differs = model is not None and model.apply_layernorm_1p

    def objects(self) -> list[str]:
        """Keys of what is no tensor, sorted."""
        return self._stored.objects()

    def read_object(self, key: str) -> io.BytesIO:
        """The bytes of what is no tensor."""
        return self._stored.read_object(key)

    def _read(self, key: str, place: tuple[int, ...]) -> torch.Tensor:
        found = self._stored.read(key, place)
        is_weight = _STATE not in key or _COPY in key
        return found + self._shift if self._differs and is_weight and key.endswith(self._ends) else found


class JoinedWeights(_NormWeights):
    """A checkpoint of Megatron-LM's with the weights that ours have: what `copy_tensors` asks of one. Without a model
    keys, shapes and types can be had alone.
    """

    def __init__(self, stored: Tensors, model: ModelSpec | None) -> None:
        super().__init__(stored, model, 1.0)
        self._model = model
        self._joined = dict(self._find())

    def _find(self) -> Iterator[tuple[str, tuple[StoredRows, tuple[str, ...]]]]:
        """Weights that are there in parts, of the sizes that the model says."""
        stored = frozenset(self._stored.keys())
        for rows in (rows for each in _OF_BLOCKS for rows in each.rows):
            first = f".{rows.names[0]}"
            for key in (key.removesuffix(first) for key in stored if key.endswith(rows.weight + first)):
                parts = tuple(f"{key}.{name}" for name in rows.names)
                if not all(part in stored for part in parts):
                    continue
                shapes = [self._stored.shape(part) for part in parts]
                if not all(shapes):  # numbers without rows
                    continue
                counts = tuple(shape[0] for shape in shapes)
                is_known = self._model is None or counts == rows.rows(self._model)
                if is_known and len({shape[1:] for shape in shapes}) == 1:
                    yield key, (rows, parts)

    def keys(self) -> list[str]:
        """Of all tensors, sorted."""
        read = {part for _, parts in self._joined.values() for part in parts}
        return sorted([*self._joined, *(key for key in self._stored.keys() if key not in read)])  # noqa: SIM118

    def shape(self, key: str) -> tuple[int, ...]:
        if key not in self._joined:
            return self._stored.shape(key)
        shapes = [self._stored.shape(part) for part in self._joined[key][1]]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def dtype(self, key: str) -> torch.dtype:
        return self._stored.dtype(self._joined[key][1][0] if key in self._joined else key)

    def places(self, key: str) -> int:
        """How many of a tensor's first dimensions it is stored in single parts along."""
        return 0 if key in self._joined else self._stored.places(key)

    def read(self, key: str, place: tuple[int, ...]) -> torch.Tensor:
        """A tensor, or its part at a place. Raises CheckpointError when it is damaged."""
        if key not in self._joined:
            return self._read(key, place)
        rows, parts = self._joined[key]
        groups = rows.groups(self._model)
        grouped = [torch.unflatten(self._stored.read(part, ()), 0, (groups, -1)) for part in parts]
        return torch.cat(grouped, dim=1).flatten(0, 1)


class _Part(NamedTuple):
    """Of a weight."""

    key: str
    """That of the weight."""
    counts: tuple[int, ...]
    """Rows of each part in a group."""
    number: int
    """Which part it is."""
    groups: int


class SplitWeights(_NormWeights):
    """A checkpoint of ours with the weights that Megatron-LM's have."""

    def __init__(self, stored: Tensors, model: ModelSpec) -> None:
        super().__init__(stored, model, -1.0)
        self._parts: dict[str, _Part] = {}
        for rows in (rows for each in _OF_BLOCKS if getattr(model, each.has) for rows in each.rows):
            groups = rows.groups(model)
            counts = tuple(count // groups for count in rows.rows(model))
            self._parts |= {
                f"{key}.{name}": _Part(key, counts, number, groups)
                for key in stored.keys()  # noqa: SIM118 - it is no mapping
                if key.endswith(rows.weight)
                for number, name in enumerate(rows.names)
            }

    @property
    def has_others(self) -> bool:
        """Whether anything is not as it is stored."""
        return bool(self._parts)

    def keys(self) -> list[str]:
        """Of all tensors, sorted."""
        split = {part.key for part in self._parts.values()}
        return sorted([*self._parts, *(key for key in self._stored.keys() if key not in split)])  # noqa: SIM118

    def shape(self, key: str) -> tuple[int, ...]:
        part = self._parts.get(key)
        if part is None:
            return self._stored.shape(key)
        return (part.groups * part.counts[part.number], *self._stored.shape(part.key)[1:])

    def dtype(self, key: str) -> torch.dtype:
        return self._stored.dtype(self._parts[key].key if key in self._parts else key)

    def places(self, key: str) -> int:
        """How many of a tensor's first dimensions it is stored in single parts along."""
        return 0 if key in self._parts else self._stored.places(key)

    def read(self, key: str, place: tuple[int, ...]) -> torch.Tensor:
        """A tensor, or its part at a place. Raises CheckpointError when it is damaged."""
        part = self._parts.get(key)
        if part is None:
            return self._read(key, place)
        grouped = torch.unflatten(self._stored.read(part.key, ()), 0, (part.groups, -1))
        return torch.split(grouped, [*part.counts], dim=1)[part.number].flatten(0, 1)
