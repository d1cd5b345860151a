"""Tensors into a checkpoint in torch's distributed format: a file for each thread, summed up while it is written."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from orchestrator.conversion.tensors.threads import in_threads
from orchestrator.run_directory.checkpoints.commit_markers import FileRecord


@dataclass(frozen=True)
class TensorPart:
    """A tensor to come: at a place of the tensor `key` along its first dimensions, which are `within` so large."""

    key: str
    place: tuple[int, ...]
    within: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], torch.Tensor]

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    @property
    def chunk(self) -> ChunkStorageMetadata:
        offsets = torch.Size([*self.place, *(0 for _ in self.shape)])
        return ChunkStorageMetadata(offsets, torch.Size([*(1 for _ in self.place), *self.shape]))


@dataclass
class _File:
    """What goes into one file, and what came of it."""

    path: Path
    parts: list[TensorPart] = field(default_factory=list)
    objects: list[str] = field(default_factory=list)
    results: list[WriteResult] = field(default_factory=list)
    record: FileRecord | None = None

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


def write_tensors(
    folder: Path, parts: Sequence[TensorPart], objects: Sequence[str], threads: int, advance: Callable[[int], None]
) -> Mapping[str, FileRecord]:
    """Write all parts, and empty objects of these names; the files by name, but `.metadata`. `advance` hears of bytes.

    Each is made when it is written, in a thread; the same parts and threads give the same files. Raises OSError.
    """
    files = [_File(folder / f"__0_{number}.distcp") for number in range(min(threads, len(parts)))]
    for part in parts:
        min(files, key=lambda file: file.bytes).parts.append(part)
    files[0].objects.extend(objects)
    in_threads(lambda file: _write(file, advance), files, threads)
    entries: dict[str, Any] = {key: BytesStorageMetadata() for key in objects}
    for part in parts:
        size = torch.Size([*part.within, *part.shape])
        entry = entries.setdefault(part.key, TensorStorageMetadata(TensorProperties(dtype=part.dtype), size, []))
        entry.chunks.append(part.chunk)
    writer = FileSystemWriter(folder)
    writer.set_up_storage_writer(is_coordinator=True)
    writer.finish(Metadata(entries), [file.results for file in files])
    return {file.path.name: file.record for file in files if file.record is not None}


def _write(file: _File, advance: Callable[[int], None]) -> None:
    with _ChecksummedFile(file.path) as stream:
        for part in file.parts:
            tensor = part.make()
            assert (tuple(tensor.shape), tensor.dtype) == (part.shape, part.dtype), part.key
            _save(tensor[(None,) * len(part.place)], MetadataIndex(part.key, part.chunk.offsets), stream, file)
            advance(part.bytes)
        for key in file.objects:
            _save([None], MetadataIndex(key), stream, file)
        stream.finish()
        file.record = FileRecord(stream.bytes, stream.crc)


def _save(value: Any, index: MetadataIndex, stream: _ChecksummedFile, file: _File) -> None:
    start = stream.bytes
    torch.save(value, cast(IO[bytes], stream))  # of a file it uses write and flush
    stream.check()
    length = stream.bytes - start
    file.results.append(WriteResult(index, length, _StorageInfo(file.path.name, start, length)))


class _ChecksummedFile(io.RawIOBase):
    """A file with the CRC-32 of what was written to it.

    What the disk refuses is raised by `check` and `finish`: on its way through torch it would become another error.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._failure: OSError | None = None
        self.bytes = self.crc = 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        left = memoryview(content).cast("B")
        size = len(left)
        self.crc = zlib.crc32(left, self.crc)
        self.bytes += size
        try:
            while left and self._failure is None:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            self._failure = error
        return size

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        """Make it durable."""
        self.check()
        os.fsync(self._descriptor)

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
