"""What a file is, by its name and by its first bytes: what is read from folders, and what looks like data and is not.
Light."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from pathlib import Path

COMPRESSIONS = {
    ".gz": (b"\x1f\x8b",),
    ".bz2": (b"BZh", b"1AY&SY"),  # between them a digit
    ".xz": (b"\xfd7zXZ\0",),
    ".zst": (b"\x28\xb5\x2f\xfd",),
}
"""Endings of what is decompressed, and how its bytes begin."""
HEAD = 512
"""Bytes at the beginning of a file that tell what it is."""
_UNPACK = "Unpack it"
_TO_TABLE = "Write its text as parquet or JSON lines"
_NO_TEXT = {
    b"PK\x03\x04": ("a zip archive", _UNPACK),
    b"PK\x05\x06": ("a zip archive", _UNPACK),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", _UNPACK),
    b"Rar!\x1a\x07": ("a rar archive", _UNPACK),
    b"\x5d\0\0": ("compressed with lzma", "Decompress it, or compress it with xz"),
    b"\x04\x22\x4d\x18": ("compressed with lz4", "Decompress it, or compress it with zstd"),
    b"\x1f\x9d": ("compressed with compress", "Decompress it, or compress it with gzip"),
    b"PAR1\x15": ("a parquet file", "Give its name the ending .parquet"),
    b"ARROW1\0\0": ("an Arrow file", _TO_TABLE),
    b"Obj\x01": ("an Avro file", _TO_TABLE),
    b"\x89HDF\r\n\x1a\n": ("an HDF5 file", _TO_TABLE),
    b"SQLite format 3\0": ("an SQLite database", _TO_TABLE),
    b"%PDF-": ("a PDF", "Write its text to a file"),
    b"\xff\xfe": ("text in UTF-16", "Write it in UTF-8"),
    b"\xfe\xff": ("text in UTF-16", "Write it in UTF-8"),
}
_TAR, _TAR_MARK = 257, b"ustar"
_ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar", ".lzma", ".lz4", ".z")
_TABLES = (".parquet", ".arrow", ".feather", ".avro", ".orc", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".tfrecord")


def compression_of(path: Path, head: bytes) -> str | None:
    """The ending of `COMPRESSIONS` that a file has, or whose first bytes; None for what is not compressed so."""
    if (ending := path.suffix.lower()) in COMPRESSIONS:
        return ending
    for ending, (mark, *more) in COMPRESSIONS.items():
        rest = head[len(mark) + 1 :]
        if head.startswith(mark) and all(rest.startswith(each) for each in more):
            return ending
    return None


def why_no_text(head: bytes) -> tuple[str, str] | None:
    """What a file is that begins so, and what to do about it; None where it may be text."""
    if head[_TAR:].startswith(_TAR_MARK) and b"\0" in head:
        return "it is a tar archive", _UNPACK
    return next((("it is " + what, way) for mark, (what, way) in _NO_TEXT.items() if head.startswith(mark)), None)


def why_unreadable(path: Path, head: bytes) -> str | None:
    """The same in one text, where compressed files are not read either."""
    if (found := why_no_text(head[:HEAD])) is not None:
        return ". ".join(found)
    return None if compression_of(path, head[:HEAD]) is None else "it is compressed. Decompress it"


def is_usual(name: str, globs: Iterable[str]) -> bool:
    """Whether one of the usual globs takes a file, in whatever case its name is written."""
    return any(fnmatch.fnmatchcase(name.lower(), glob) for glob in globs)


def data_kind(name: str) -> str | None:
    """The ending of a file that is meant to be data by its name, such as `.csv.gz`; None for another."""
    endings = [ending.lower() for ending in Path(name).suffixes]
    packed = endings.pop() if endings and endings[-1] in COMPRESSIONS else ""
    ending = endings[-1] if endings and endings[-1] in (*_ARCHIVES, *_TABLES) else ""
    return ending + packed or None


def why_unread(kind: str) -> str:
    """What of files of a kind that `data_kind` found: why they are not read from folders, and what to do about it."""
    if kind.startswith(_ARCHIVES):
        return "cannot be read: unpack them"
    return "are not read from folders by default: choose them with --glob, or convert them"
