"""Tensors as torch.save wrote them, read from where they lie in a file; a byte that changed is found."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.refused import refused

from orchestrator.conversion.tensors.blobs import read_tensor
from orchestrator.errors import CheckpointError

BEFORE = b"another tensor"


def saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def read(path: Path, content: bytes, length: int | None = None) -> torch.Tensor:
    path.write_bytes(BEFORE + content)
    return read_tensor(path, len(BEFORE), len(content) if length is None else length)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.float8_e4m3fn])
def test_tensors_of_any_kind(tmp_path: Path, dtype: torch.dtype) -> None:
    """Also one that lies transposed, one that is a part, and formats that only torch itself reads."""
    whole = torch.arange(24.0).view(4, 6).to(dtype)
    for tensor in (whole, whole.t(), whole[1:3], whole[:, 2:], whole[0, 0], torch.empty(0, 3, dtype=dtype)):
        found = read(tmp_path / "file", saved(tensor))
        assert (found.dtype, found.shape) == (dtype, tensor.shape)
        assert torch.equal(found.float(), tensor.float())


CONTENT = saved(torch.arange(40.0).view(5, 8))


@given(place=st.integers(0, len(CONTENT) - 1), change=st.integers(1, 255))
def test_a_changed_byte_is_found_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, place: int, change: int
) -> None:
    content = bytearray(CONTENT)
    content[place] ^= change
    path = tmp_path_factory.getbasetemp() / "changed"
    try:
        found = read(path, bytes(content))
    except CheckpointError as error:
        assert str(path) in str(error)  # noqa: PT017 - of two outcomes, this is one
        return
    assert torch.equal(found, torch.arange(40.0).view(5, 8))


class Call:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._folder),)


def test_nothing_is_run(tmp_path: Path) -> None:
    with refused("damaged_file", 14, kind=CheckpointError):
        read(tmp_path / "file", saved(Call(tmp_path / "ran")))
    with pytest.raises(CheckpointError):
        read(tmp_path / "file", pickle.dumps(Call(tmp_path / "ran")))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("length", [0, 10, len(CONTENT) - 1, len(CONTENT) + 1])
def test_what_is_cut_off(tmp_path: Path, length: int) -> None:
    with refused("damaged_file", "file", 14, kind=CheckpointError):
        read(tmp_path / "file", CONTENT, length)
