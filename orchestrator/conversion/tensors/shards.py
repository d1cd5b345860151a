"""Files of safetensors, written a tensor at a time: the format is a header that says what lies where, and the bytes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orchestrator.conversion.tensors.names import INDEX, SINGLE

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_HEADER_ALIGNMENT = 8
_MOST_AT_ONCE = 64 << 20


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


class ShardFiles:
    """The files `model….safetensors` of a folder, whose tensors any thread writes in any order, with an index; or one
    file, `single`. A context manager.
    """

    def __init__(self, folder: Path, shards: Sequence[Sequence[Entry]], single: str = SINGLE) -> None:
        count = len(shards)
        names = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
        self._folder, self._names = folder, names if count > 1 else [single]
        self._headers: list[bytes] = []
        self._places: dict[str, tuple[int, int, Entry]] = {}
        for number, entries in enumerate(shards):
            header = _header(entries)
            self._headers.append(header)
            end = len(header)
            for entry in entries:
                self._places[entry.name] = number, end, entry
                end += entry.bytes
        self._missing = [len(entries) for entries in shards]
        self._opened: dict[int, int] = {}
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> ShardFiles:
        return self

    def __exit__(self, *error: object) -> None:
        for descriptor in self._opened.values():
            os.close(descriptor)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write one tensor; the last one of a file makes the file durable."""
        number, offset, entry = self._places[name]
        assert (tuple(tensor.shape), tensor.dtype) == (entry.shape, entry.dtype), name
        descriptor = self._descriptor(number)
        _write(descriptor, tensor.contiguous().flatten().view(torch.uint8).numpy(), offset)
        with self._one_at_a_time:
            self._missing[number] -= 1
            is_last = self._missing[number] == 0
            if is_last:
                del self._opened[number]
        if is_last:
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def finish(self) -> None:
        """Write the index, where there are several files. Every tensor must have come."""
        assert not any(self._missing)
        if len(self._names) > 1:
            total = sum(entry.bytes for _, _, entry in self._places.values())
            places = {name: self._names[number] for name, (number, _, _) in self._places.items()}
            index = {"metadata": {"total_size": total}, "weight_map": places}
            (self._folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")

    def _descriptor(self, number: int) -> int:
        with self._one_at_a_time:
            if number not in self._opened:
                self._opened[number] = os.open(self._folder / self._names[number], os.O_WRONLY | os.O_CREAT, 0o666)
                _write(self._opened[number], self._headers[number], 0)
            return self._opened[number]


def _header(entries: Sequence[Entry]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in entries:
        start, end = end, end + entry.bytes
        header[entry.name] = {"dtype": DTYPES[entry.dtype], "shape": list(entry.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _write(descriptor: int, content: Any, offset: int) -> None:
    """All of it: one call writes two gigabytes at most."""
    left = memoryview(content)
    while left:
        written = os.pwrite(descriptor, left[:_MOST_AT_ONCE], offset)
        left, offset = left[written:], offset + written
