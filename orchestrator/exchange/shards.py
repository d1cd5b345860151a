"""Files of safetensors, written a tensor at a time: the format is a header that says what lies where, and the bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orchestrator.exchange.names import INDEX, SINGLE

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_HEADER_ALIGNMENT = 8


@dataclass(frozen=True)
class Entry:
    """One tensor to come."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def in_shards(entries: Sequence[Entry], most_bytes: int) -> list[list[Entry]]:
    """Consecutive tensors of at most so many bytes together; a larger tensor is a shard of its own."""
    shards: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if shards[-1] and size + entry.bytes > most_bytes:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += entry.bytes
    return shards


class ShardWriter:
    """Writes tensors, which come in the order of the shards, into `model….safetensors` of a folder, with an index."""

    def __init__(self, folder: Path, shards: Sequence[Sequence[Entry]]) -> None:
        self._folder, count = folder, len(shards)
        names = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
        self._names = names if count > 1 else [SINGLE]
        self._shards = shards
        self._waiting = [(shard, entry) for shard, entries in enumerate(shards) for entry in entries]
        self._next = 0
        self._file: Any = None

    def add(self, tensor: torch.Tensor) -> None:
        """The next tensor."""
        shard, entry = self._waiting[self._next]
        assert (tuple(tensor.shape), tensor.dtype) == (entry.shape, entry.dtype), entry.name
        if self._file is None:
            self._begin(shard)
        self._file.write(tensor.contiguous().flatten().view(torch.uint8).numpy())
        self._next += 1
        if self._next == len(self._waiting) or self._waiting[self._next][0] != shard:
            self._end()

    def finish(self) -> None:
        """Write the index, where there are several files. Every tensor must have come."""
        assert self._next == len(self._waiting)
        if len(self._shards) > 1:
            total = sum(entry.bytes for _, entry in self._waiting)
            places = {entry.name: self._names[shard] for shard, entry in self._waiting}
            index = {"metadata": {"total_size": total}, "weight_map": places}
            (self._folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _begin(self, shard: int) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for entry in self._shards[shard]:
            start, end = end, end + entry.bytes
            header[entry.name] = {
                "dtype": DTYPES[entry.dtype],
                "shape": list(entry.shape),
                "data_offsets": [start, end],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _HEADER_ALIGNMENT)
        self._file = open(self._folder / self._names[shard], "wb")  # noqa: SIM115 - closed when its last tensor is in
        self._file.write(len(text).to_bytes(8, "little") + text)

    def _end(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
