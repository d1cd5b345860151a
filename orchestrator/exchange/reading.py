"""Single tensors of a checkpoint, or of one layer of it, whatever layout wrote it: nothing else is read."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from orchestrator.errors import CheckpointError

_OF_TORCH = "torch.distributed.checkpoint."
_KNOWN = {
    "pathlib": {"PosixPath"},
    "torch": {"Size", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))},
    "torch.serialization": {"_get_layout"},
    f"{_OF_TORCH}filesystem": {"_StorageInfo"},
    f"{_OF_TORCH}metadata": {
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
        *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    f"{_OF_TORCH}planner": {"BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"},
}
"""What the list of a checkpoint's tensors, a pickle, is made of. It can name nothing else, so it can run nothing."""


class StoredWeights:
    """The tensors of a checkpoint in megatron-core's distributed format. Raises CheckpointError when it is none."""

    def __init__(self, folder: Path) -> None:
        self._reader = _Reader(folder)
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
        self._reader.read_data(LoadPlan(items), _Into(tensor)).wait()
        return tensor.view(rest)


class _Reader(FileSystemReader):
    """torch's, which would call whatever the list of tensors names."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self.path) / ".metadata"
        try:
            with open(path, "rb") as file:
                metadata = _Unpickler(file).load()
        except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
            raise CheckpointError(f"{path} is not the list of a checkpoint's tensors: {error}") from error
        if not isinstance(metadata, Metadata):
            raise CheckpointError(f"{path} is not the list of a checkpoint's tensors")
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _KNOWN.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


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
