"""Single tensors of a checkpoint, or of one layer of it, whatever layout wrote it: nothing else is read."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from orchestrator.errors import CheckpointError
from orchestrator.weights_only import DAMAGES, reason_of, weights_only


class StoredWeights:
    """The tensors of a checkpoint in megatron-core's distributed format. Raises CheckpointError when it is none."""

    def __init__(self, folder: Path) -> None:
        self._reader = FileSystemReader(folder)
        with weights_only():
            metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(metadata, is_coordinator=True)
        self._folder = folder
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
        into = _Into(torch.empty(0))
        item = ReadItem(LoadItemType.BYTE_IO, index, torch.Size((0,)), index, torch.Size((0,)), torch.Size((0,)))
        with weights_only():
            self._reader.read_data(LoadPlan([item]), into).wait()
        return into.bytes

    def shared(self) -> dict[str, Any]:
        """What is not stored by parts: `common.pt`."""
        path = self._folder / "common.pt"
        try:
            with weights_only():
                found = torch.load(path, map_location="cpu", weights_only=True)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        except DAMAGES as error:
            raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from error
        if not isinstance(found, dict):
            raise CheckpointError(f"{path} holds no state")
        return found

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._entries[key].size)

    def dtype(self, key: str) -> torch.dtype:
        return self._entries[key].properties.dtype

    def read(self, key: str, place: tuple[int, ...]) -> torch.Tensor:
        """A tensor, or its part at a place along the first dimensions, without these."""
        entry = self._entries[key]
        rest = entry.size[len(place) :]
        offsets, sizes = [*place, *(0 for _ in rest)], [*(1 for _ in place), *rest]
        wanted = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        tensor = torch.empty(sizes, dtype=entry.properties.dtype)
        items = create_read_items_for_chunk_list(key, entry, [wanted])
        if sum(math.prod(item.lengths) for item in items) != tensor.numel():
            raise CheckpointError(f"{key} is not whole in the checkpoint")
        with weights_only():
            self._reader.read_data(LoadPlan(items), _Into(tensor)).wait()
        return tensor.view(rest)


class _Into(DefaultLoadPlanner):
    """Puts what is read into one tensor, or keeps the bytes of an object."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self._tensor = tensor
        self.bytes = io.BytesIO()

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.bytes = value

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        part = self._tensor
        for dimension, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            part = part.narrow(dimension, start, length)
        return part

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """It is in place already."""
