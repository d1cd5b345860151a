"""Tensors in files, mapped into memory and not copied.

In a checkpoint's file a tensor is what torch.save wrote: a zip of a pickle, which says its shape, and of its bytes with
their CRC-32. The bytes are compared with it: whoever reads a tensor need not read its whole file to know that it is as
it was written. The pickle can name nothing but a plain tensor; others, which are no weights, torch reads weights-only.
"""

from __future__ import annotations

import io
import mmap
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orchestrator.errors import CheckpointError
from orchestrator.weights_only import DAMAGES, reason_of

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_STORAGES = {
    **{"FloatStorage": torch.float32, "BFloat16Storage": torch.bfloat16, "HalfStorage": torch.float16},
    **{"DoubleStorage": torch.float64, "LongStorage": torch.int64, "IntStorage": torch.int32},
    **{"ByteStorage": torch.uint8, "CharStorage": torch.int8, "BoolStorage": torch.bool},
}


def mapped(path: Path, offset: int, length: int) -> memoryview:
    """Bytes of a file. Raises OSError, and ValueError when it is shorter."""
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    with open(path, "rb") as file:
        # A private copy of what is written to, which nothing is: torch warns of memory that could not be.
        whole = mmap.mmap(file.fileno(), offset - start + length, access=mmap.ACCESS_COPY, offset=start)
    if hasattr(mmap, "MADV_WILLNEED"):  # not on every system
        whole.madvise(mmap.MADV_WILLNEED)
    return memoryview(whole)[offset - start :]


def read_tensor(path: Path, offset: int, length: int) -> torch.Tensor:
    """The tensor that torch.save wrote there, as a view of the file. Raises CheckpointError when it is damaged."""
    try:
        blob = mapped(path, offset, length)
        with zipfile.ZipFile(_View(blob)) as archive:
            [pickled] = [info for info in archive.infolist() if info.filename.endswith("/data.pkl")]
            tensor = _described(archive.read(pickled))
            if tensor is None:
                return _read_by_torch(blob)
            data = archive.getinfo(f"{pickled.filename.removesuffix('.pkl')}/{tensor.key}")
        content = _content(blob, data)
        if zlib.crc32(content) != data.CRC:
            raise ValueError("its bytes are not those that were written (CRC-32)")
        flat = torch.frombuffer(content, dtype=tensor.dtype) if content else torch.empty(0, dtype=tensor.dtype)
        return torch.as_strided(flat, tensor.size, tensor.stride, tensor.offset)
    except (*DAMAGES, zipfile.BadZipFile, struct.error) as error:
        raise CheckpointError(f"{path} is damaged at byte {offset}: {reason_of(error)}", code="damaged_file") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", code="unreadable_file") from error


def _described(pickled: bytes) -> _Tensor | None:
    """What a pickle says; None when it is of another kind than those of a plain tensor."""
    try:
        found = _Unpickler(io.BytesIO(pickled)).load()
    except pickle.UnpicklingError:
        return None
    return found if isinstance(found, _Tensor) else None


def _read_by_torch(blob: memoryview) -> torch.Tensor:
    found = torch.load(io.BufferedReader(_View(blob)), map_location="cpu", weights_only=True)
    if not isinstance(found, torch.Tensor):
        raise ValueError("it is no tensor")
    return found


def _content(blob: memoryview, info: zipfile.ZipInfo) -> memoryview:
    """The bytes of an entry that is stored as it is."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise ValueError("its bytes are compressed, which torch never does")
    header = _LOCAL_HEADER.unpack_from(blob, info.header_offset)
    start = info.header_offset + _LOCAL_HEADER.size + header[-2] + header[-1]
    content = blob[start : start + info.file_size]
    if header[0] != b"PK\3\4" or len(content) != info.file_size:
        raise ValueError("it is shorter than stated in it")
    return content


@dataclass(frozen=True)
class _Tensor:
    """What a pickle says of a tensor."""

    dtype: torch.dtype
    key: str
    offset: int
    size: Sequence[int]
    stride: Sequence[int]


def _tensor(storage: Any, offset: int, size: Sequence[int], stride: Sequence[int], *rest: Any) -> _Tensor:
    dtype, key = storage
    return _Tensor(dtype, key, offset, size, stride)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, which weights never contain")

    def persistent_load(self, pid: Any) -> tuple[torch.dtype, str]:
        kind, dtype, key, *_ = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            raise pickle.UnpicklingError("it names what is no storage")
        return dtype, str(key)


class _View(io.RawIOBase):
    """Memory as a file, which copies what is read only."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._place = content, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._content[self._place : self._place + len(buffer)]
        buffer[: len(part)] = part
        self._place += len(part)
        return len(part)

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: len(self._content)}[whence]
        self._place = max(0, base + offset)
        return self._place
