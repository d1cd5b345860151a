from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from support.refused import refused

from orchestrator.data.indexed_dataset.header import HEADER, MAGIC, bin_path, idx_path, read_index, tokens_before
from orchestrator.errors import DataError, OrchestratorError, UserError


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Made by megatron-core: 3 documents of 2, 1 and 3 sequences, 1 + 2 + … + 6 tokens."""
    builder = IndexedDatasetBuilder(str(tmp_path / "made.bin"), dtype=np.uint16)
    length = 0
    for sequences in (2, 1, 3):
        for _ in range(sequences):
            length += 1
            builder.add_item(torch.full((length,), length))
        builder.end_document()
    builder.finalize(str(tmp_path / "made.idx"))
    return tmp_path / "made"


def test_header_of_megatron_core(prefix: Path) -> None:
    header = read_index(prefix)
    assert (header.dtype, header.itemsize, header.sequences, header.documents) == ("uint16", 2, 6, 3)
    assert (header.tokens, header.bin_bytes) == (21, 42)
    assert [tokens_before(header, sequence) for sequence in range(7)] == [0, 1, 3, 6, 10, 15, 21]


def test_empty_data_set(tmp_path: Path) -> None:
    IndexedDatasetBuilder(str(tmp_path / "none.bin"), dtype=np.int32).finalize(str(tmp_path / "none.idx"))
    header = read_index(tmp_path / "none")
    assert (header.sequences, header.documents, header.tokens) == (0, 0, 0)


def test_missing(tmp_path: Path, prefix: Path) -> None:
    with refused("missing_data_set", "nothing.idx"):
        read_index(tmp_path / "nothing")
    with refused("missing_data_set", prefix):
        read_index(tmp_path / "made.bin")
    bin_path(prefix).unlink()
    with refused("missing_data_set", "made.bin", "made.idx"):
        read_index(prefix)


def test_foreign(prefix: Path) -> None:
    idx_path(prefix).write_bytes(b"PK\x03\x04" + b"\0" * 100)
    with refused("not_an_index", "made.idx"):
        read_index(prefix)
    idx_path(prefix).write_bytes(HEADER.pack(MAGIC, 2, 8, 0, 1) + b"\0" * 8)
    with refused("unknown_index_version", "version 2", "code 8"):
        read_index(prefix)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_every_cut_is_noticed(prefix: Path, tmp_path: Path, data: Any) -> None:
    kept = {path: path.read_bytes() for path in (idx_path(prefix), bin_path(prefix))}
    path = data.draw(st.sampled_from(list(kept)))
    size = data.draw(st.integers(0, len(kept[path]) - 1))
    try:
        os.truncate(path, size)
        with pytest.raises(DataError if path.suffix == ".bin" or size >= len(MAGIC) else UserError):
            read_index(prefix)
    finally:
        path.write_bytes(kept[path])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_no_content_gives_a_traceback(prefix: Path, tail: bytes, sequences: int, marks: int) -> None:
    header = MAGIC + struct.pack("<QBQQ", 1, 8, sequences, marks)
    idx_path(prefix).write_bytes(header + tail)
    with pytest.raises(OrchestratorError):
        read_index(prefix)
