"""What lies where in a safetensors file: the length of its header, that in JSON, and the tensors one after the other.

A file comes from anywhere, so everything that its header says is compared with the file before anything is read of it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import UserError, file_refusal

LONGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""
_LENGTH_BYTES = 8
_ITEM_BYTES = {
    **{"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2},
    **{"I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8},
}


class Header(NamedTuple):
    """Where a tensor is, and what it is; `name` is its name there."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    """Of its first byte in the file."""
    bytes: int


def read_headers(path: Path) -> list[Header]:
    """The tensors of a file, in its order. Raises UserError with what is wrong with it."""
    if not path.exists():
        raise UserError(f"{path} is missing", code="file_not_found")
    if not path.is_file():
        raise UserError(f"{path} is no file", code="not_a_file")
    with file_refusal(path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(_LENGTH_BYTES)
        length = int.from_bytes(start, "little")
        if len(start) < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, LONGEST_HEADER):
            raise _damaged(
                path, f"it says that its header has {length} bytes, but the file has {size}", code="torn_safetensors"
            )
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is not JSON: {error}", code="not_json") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object", code="not_a_json_object")
    header.pop("__metadata__", None)
    data = _LENGTH_BYTES + length
    found = [_checked(path, name, entry, data) for name, entry in header.items()]
    end = data
    for each in sorted(found, key=lambda each: (each.offset, each.bytes)):
        if each.offset != end:
            raise _damaged(path, f"{each.name} does not begin where the tensor before it ends", code="misplaced_tensor")
        end += each.bytes
    if end != size:
        raise _damaged(path, f"it has {size} bytes, and its header speaks of {end}", code="torn_safetensors")
    return found


def _checked(path: Path, name: str, entry: Any, data: int) -> Header:
    """An entry whose shape and place agree."""
    if not isinstance(entry, dict):
        raise _damaged(path, f"{name} is no entry of a tensor", code="not_a_tensor_entry")
    dtype, shape, place = entry.get("dtype"), _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or place is None or len(place) != 2 or place[0] > place[1]:
        raise _damaged(
            path, f"{name} has no dtype, shape and data_offsets that can be understood", code="malformed_tensor_entry"
        )
    size = place[1] - place[0]
    if dtype in _ITEM_BYTES and math.prod(shape) * _ITEM_BYTES[dtype] != size:
        raise _damaged(
            path,
            f"{name} is {dtype} of shape {shape}, and {size} bytes are said to hold it",
            code="tensor_size_differs",
        )
    return Header(path, name, shape, dtype, data + place[0], size)


def _counts(value: Any) -> tuple[int, ...] | None:
    is_list = isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
    return tuple(value) if is_list else None


def _once_each(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
        raise ValueError(f"{twice} is there twice")
    return found


def _damaged(path: Path, reason: str, *, code: str) -> UserError:
    return UserError(f"{path} is damaged, or no safetensors file: {reason}", code=code)
