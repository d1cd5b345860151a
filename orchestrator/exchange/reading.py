"""Single tensors of a checkpoint, or of one layer of it, whatever layout wrote it: nothing else is read."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from orchestrator.errors import CheckpointError
from orchestrator.weights_only import weights_only


class StoredWeights:
    """The tensors of a checkpoint in megatron-core's distributed format. Raises CheckpointError when it is none."""

    def __init__(self, folder: Path) -> None:
        self._reader = FileSystemReader(folder)
        with weights_only():
            metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(metadata, is_coordinator=True)
        self._entries = {
            key: entry
            for key, entry in metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }

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
    """Puts what is read into one tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self._tensor = tensor

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        part = self._tensor
        for dimension, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            part = part.narrow(dimension, start, length)
        return part

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """It is in place already."""
