"""Single tensors of a checkpoint, or of one layer of it, whatever layout wrote it: nothing else is read."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from orchestrator.conversion.tensors.blobs import read_tensor
from orchestrator.errors import CheckpointError
from orchestrator.weights_only import DAMAGES, reason_of, weights_only


@dataclass(frozen=True)
class _Chunk:
    """A part of a tensor, and where it is."""

    offsets: Sequence[int]
    sizes: Sequence[int]
    path: Path
    start: int
    length: int

    def holds(self, place: Sequence[int]) -> bool:
        """Whether a place along the first dimensions is in it."""
        return all(start <= at < start + size for at, start, size in zip(place, self.offsets, self.sizes, strict=False))


class Tensors(Protocol):
    """The tensors of a checkpoint, and what is stored between them: of `StoredWeights` what writing them needs."""

    def keys(self) -> list[str]: ...
    def objects(self) -> list[str]: ...
    def shape(self, key: str) -> tuple[int, ...]: ...
    def dtype(self, key: str) -> torch.dtype: ...
    def places(self, key: str) -> int: ...
    def read(self, key: str, place: tuple[int, ...]) -> torch.Tensor: ...
    def read_object(self, key: str) -> io.BytesIO: ...


_SHARED = "common_state/shard_0_1"


class StoredWeights:
    """The tensors of a checkpoint in megatron-core's distributed format; any thread may read them. Raises
    CheckpointError when it is none.
    """

    def __init__(self, folder: Path) -> None:
        self._reader = FileSystemReader(folder)
        with weights_only():
            metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(metadata, is_coordinator=True)
        self._folder, self._metadata = folder, metadata
        self._chunks: dict[str, dict[int, list[_Chunk]]] = {}
        self._objects = [
            key for key, entry in metadata.state_dict_metadata.items() if not isinstance(entry, TensorStorageMetadata)
        ]
        self._entries = {
            key: entry
            for key, entry in metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }

    def keys(self) -> list[str]:
        """Of all tensors, sorted."""
        return sorted(self._entries)

    def objects(self) -> list[str]:
        """Keys of what is no tensor, sorted."""
        return sorted(self._objects)

    def chunks(self, key: str) -> list[ChunkStorageMetadata]:
        """The parts that a tensor is stored in."""
        return list(self._entries[key].chunks)

    def places(self, key: str) -> int:
        """How many of a tensor's first dimensions it is stored in single parts along: layers, experts."""
        chunks, dimensions = self.chunks(key), len(self.shape(key)) - 1
        apart = (all(chunk.sizes[dimension] == 1 for chunk in chunks) for dimension in range(dimensions))
        return next((number for number, is_apart in enumerate(apart) if not is_apart), max(dimensions, 0))

    def read_object(self, key: str) -> io.BytesIO:
        """The bytes of what is no tensor, as they are stored: whatever they are, they are not looked into."""
        index = MetadataIndex(key)
        into = _Into()
        item = ReadItem(LoadItemType.BYTE_IO, index, torch.Size((0,)), index, torch.Size((0,)), torch.Size((0,)))
        with weights_only():
            self._reader.read_data(LoadPlan([item]), into).wait()
        return into.bytes

    def shared(self) -> dict[str, Any]:
        """What is not stored by parts: `common.pt`, or an object of its own, as of megatron-core 0.19."""
        path = self._folder / "common.pt"
        inside = not path.exists() and _SHARED in self._objects
        source = self.read_object(_SHARED) if inside else path
        what = f"{_SHARED} of {self._folder}" if inside else str(path)
        try:
            with weights_only():
                found = torch.load(source, map_location="cpu", weights_only=True)
        except OSError as error:
            raise CheckpointError(f"{what} cannot be read: {error.strerror}", code="unreadable_file") from error
        except DAMAGES as error:
            raise CheckpointError(f"{what} cannot be read: {reason_of(error)}", code="unreadable_pickle") from error
        if inside and isinstance(found, list) and len(found) == 1:
            found = found[0]
        if not isinstance(found, dict):
            raise CheckpointError(f"{what} holds no state", code="checkpoint_without_state")
        return found

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._entries[key].size)

    def dtype(self, key: str) -> torch.dtype:
        return self._entries[key].properties.dtype

    def read(self, key: str, place: tuple[int, ...]) -> torch.Tensor:
        """A tensor, or its part at a place along the first dimensions, without these. It may be a view of the file.

        Raises CheckpointError when it is not whole there, or damaged.
        """
        entry, depth = self._entries[key], len(place)
        shape, dtype = torch.Size(entry.size[depth:]), entry.properties.dtype
        parts = [
            (chunk.offsets[depth:], self._part(key, chunk, place))
            for chunk in self._near(key, place)
            if chunk.holds(place)
        ]
        if sum(part.numel() for _, part in parts) != shape.numel():
            raise CheckpointError(f"{key} is not whole in {self._folder}", code="incomplete_tensor")
        if len(parts) == 1:
            return parts[0][1]
        whole = torch.empty(shape, dtype=dtype)
        for offsets, part in parts:
            into = whole
            for dimension, (start, length) in enumerate(zip(offsets, part.shape, strict=True)):
                into = into.narrow(dimension, start, length)
            into.copy_(part)
        return whole

    def _part(self, key: str, chunk: _Chunk, place: Sequence[int]) -> torch.Tensor:
        tensor = read_tensor(chunk.path, chunk.start, chunk.length)
        if (*tensor.shape,) != (*chunk.sizes,) or tensor.dtype != self.dtype(key):
            raise CheckpointError(
                f"{chunk.path} holds something else than the list of tensors says of {key}", code="tensor_not_as_listed"
            )
        return tensor[tuple(at - start for at, start in zip(place, chunk.offsets, strict=False))]

    def _near(self, key: str, place: Sequence[int]) -> list[_Chunk]:
        """The chunks of a tensor; for a place, those of its first index: a tensor has many, one for each layer."""
        if key not in self._chunks:
            chunks: dict[int, list[_Chunk]] = {}
            for chunk in self._listed(key):
                for first in range(chunk.offsets[0], chunk.offsets[0] + chunk.sizes[0]) if place else (0,):
                    chunks.setdefault(first, []).append(chunk)
            self._chunks[key] = chunks
        return self._chunks[key].get(place[0] if place else 0, [])

    def _listed(self, key: str) -> Iterable[_Chunk]:
        for entry in self._entries[key].chunks:
            info = self._metadata.storage_data.get(MetadataIndex(key, entry.offsets))
            if info is None:
                raise CheckpointError(
                    f"{self._folder / '.metadata'} does not say where {key} is", code="tensor_not_listed"
                )
            path = self._folder / info.relative_path
            yield _Chunk((*entry.offsets,), (*entry.sizes,), path, info.offset, info.length)


class _Into(DefaultLoadPlanner):
    """Keeps the bytes of an object."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = io.BytesIO()

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.bytes = value
