"""The header of a megatron-core indexed data set, read without numpy.

PREFIX.bin holds token ids, one sequence after another. PREFIX.idx describes it, little-endian:

    magic "MMIDIDX\\0\\0" | version u64 = 1 | dtype code u8 | sequence count u64 | document-index count u64
    sequence lengths i32[sequences] | byte offsets i64[sequences] | document index i64[documents + 1]
    | modes i8[sequences], in multimodal data only
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

from orchestrator.errors import DataError, UserError, file_refusal

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {
    1: ("uint8", 1),
    2: ("int8", 1),
    3: ("int16", 2),
    4: ("int32", 4),
    5: ("int64", 8),
    6: ("float64", 8),
    7: ("float32", 4),
    8: ("uint16", 2),
}
"""dtype code -> name and bytes per token."""


class IndexHeader(NamedTuple):
    """What an indexed data set holds. `sequences` is what megatron-core splits into train, validation and test."""

    prefix: Path
    dtype: str
    itemsize: int
    sequences: int
    documents: int
    tokens: int
    bin_bytes: int

    @property
    def index_bytes(self) -> int:
        """Of PREFIX.idx, without the modes of multimodal data."""
        return HEADER.size + self.sequences * 12 + (self.documents + 1) * 8


def bin_path(prefix: Path) -> Path:
    """PREFIX.bin."""
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    """PREFIX.idx."""
    return prefix.with_name(prefix.name + ".idx")


def partial_path(prefix: Path) -> Path:
    """PREFIX.partial: the folder of one that is being made, or was left unfinished."""
    return prefix.with_name(prefix.name + ".partial")


def read_index(prefix: Path) -> IndexHeader:
    """Read the header of PREFIX.idx and check both files' sizes against it.

    Raises UserError when there is no indexed data set at the prefix, DataError when one is torn.
    """
    for path in (idx_path(prefix), bin_path(prefix)):
        if not path.is_file():
            raise UserError(_missing(prefix, path), code="missing_data_set")
    path = idx_path(prefix)
    with file_refusal(path), open(path, "rb") as file:
        return _read(prefix, path, file)


def tokens_before(header: IndexHeader, sequence: int) -> int:
    """Tokens before a sequence, counted from 0; all tokens for the number of sequences. Raises DataError for a place
    outside of the data."""
    if sequence >= header.sequences:
        return header.tokens
    with open(idx_path(header.prefix), "rb") as file:
        file.seek(HEADER.size + header.sequences * 4 + sequence * 8)
        (offset,) = struct.unpack("<q", file.read(8))
    if not 0 <= offset <= header.bin_bytes:
        raise damaged(file.name, f"its sequence {sequence} begins at byte {offset} of {header.bin_bytes}")
    return int(offset) // header.itemsize


def sequences_before(header: IndexHeader, document: int) -> int:
    """Sequences before a document, counted from 0; all sequences for the number of documents. Raises DataError for a
    mark outside of these."""
    with open(idx_path(header.prefix), "rb") as file:
        file.seek(HEADER.size + header.sequences * 12 + min(document, header.documents) * 8)
        (mark,) = struct.unpack("<q", file.read(8))
    if not 0 <= mark <= header.sequences:
        raise damaged(file.name, f"its document {document} begins with sequence {mark} of {header.sequences}")
    return int(mark)


def damaged(path: Path | str, what: str) -> DataError:
    """The error that says that an index is damaged within."""
    return DataError(f"{path} is damaged: {what}. Tokenize again or copy it again", code="damaged_index")


def _missing(prefix: Path, path: Path) -> str:
    message = f"no indexed data set at {prefix}: {path} does not exist"
    if prefix.suffix in (".bin", ".idx") and idx_path(prefix.with_suffix("")).is_file():
        return f"{message}. Write the prefix without the ending: {prefix.with_suffix('')}"
    if idx_path(prefix).is_file():
        return f"{message}, though {idx_path(prefix)} does. Copy both files, or tokenize again"
    where = "" if prefix.is_absolute() else _from_here()
    return (
        f"{message}{where}. `orchestrator data tokenize` makes one from text, or say what it is made from (text: FILE)"
    )


def _from_here() -> str:
    """Where a relative path was looked for; nothing where that folder itself is gone."""
    try:
        return f" in {Path.cwd()}, from where relative paths lead"
    except OSError:
        return ""


def _read(prefix: Path, path: Path, file: BinaryIO) -> IndexHeader:
    raw = file.read(HEADER.size)
    if raw[: len(MAGIC)] != MAGIC:
        raise UserError(
            f"{path} is not the index of an indexed data set: it does not begin with MMIDIDX", code="not_an_index"
        )
    if len(raw) < HEADER.size:
        raise DataError(
            f"{path} is torn: it ends inside its header. Tokenize again or copy it again", code="torn_index"
        )
    _, version, code, sequences, marks = HEADER.unpack(raw)
    if version != 1 or code not in DTYPES:
        raise UserError(
            f"{path} has version {version} and dtype code {code}; only version 1, codes 1 to 8 are known",
            code="unknown_index_version",
        )
    dtype, itemsize = DTYPES[code]
    idx_bytes = os.fstat(file.fileno()).st_size
    expected = HEADER.size + sequences * 12 + marks * 8
    if marks < 1 or idx_bytes not in (expected, expected + sequences):
        raise DataError(
            f"{path} is torn: {sequences} sequences and {marks - 1} documents need {expected} bytes, "
            f"it has {idx_bytes}. Tokenize again or copy it again",
            code="torn_index",
        )
    tokens = _tokens(file, sequences, itemsize)
    file.seek(HEADER.size + sequences * 12 + (marks - 1) * 8)
    (last_mark,) = struct.unpack("<q", file.read(8))
    bin_bytes = bin_path(prefix).stat().st_size
    if last_mark != sequences:
        raise damaged(path, f"its last document ends before sequence {last_mark}, and there are {sequences}")
    if bin_bytes != tokens * itemsize:
        raise DataError(
            f"{bin_path(prefix)} and {path} do not belong together: the index describes {tokens} tokens of "
            f"{itemsize} bytes, the data has {bin_bytes} bytes. Tokenize again or copy both again",
            code="index_and_data_differ",
        )
    return IndexHeader(prefix, dtype, itemsize, sequences, marks - 1, tokens, bin_bytes)


def _tokens(file: BinaryIO, sequences: int, itemsize: int) -> int:
    """All tokens: the last sequence's offset and length say where the data ends."""
    if sequences == 0:
        return 0
    file.seek(HEADER.size + (sequences - 1) * 4)
    (length,) = struct.unpack("<i", file.read(4))
    file.seek(HEADER.size + sequences * 4 + (sequences - 1) * 8)
    (offset,) = struct.unpack("<q", file.read(8))
    return int(offset) // itemsize + int(length)
