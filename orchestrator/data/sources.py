"""Finding input files and reading them in chunks, from any position on."""

from __future__ import annotations

import fnmatch
import gzip
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from orchestrator.data.optional import optional_module
from orchestrator.data.request import SOURCE_GLOBS, TextDocuments, TextRequest
from orchestrator.errors import UserError

Kind = Literal["json", "line", "paragraph", "file", "parquet"]

CHUNK_BYTES = 1 << 19
"""Text that a worker gets at a time: little enough to share out evenly, enough to make the way there cheap."""
_PARQUET_ROWS = 256
_PEEKED = 1 << 12
_COMPRESSED = (".gz", ".zst")
_JSON = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class InputFile:
    """One file to read. `modified` is in nanoseconds since the epoch."""

    path: Path
    kind: Kind
    bytes: int
    modified: int


@dataclass(frozen=True)
class Position:
    """Where reading stands: a file, the bytes (parquet: rows) of it that were read, and the lines or rows."""

    file: int = 0
    offset: int = 0
    record: int = 0


@dataclass(frozen=True)
class Block:
    """Records of one file that lie together. `first` is the number of the first line or row, from 1."""

    path: str
    kind: Kind
    first: int
    content: bytes | list[tuple[Any, ...]]


@dataclass
class Chunk:
    """Work for one worker, and where reading stands after it. `disk_bytes` counts what was read of all files."""

    blocks: list[Block] = field(default_factory=list)
    text_bytes: int = 0
    end: Position = Position()
    disk_bytes: int = 0


def find_inputs(request: TextRequest, usual: Sequence[str] = SOURCE_GLOBS) -> list[InputFile]:
    """All input files, in the order given; those of a directory in the order of their paths. `usual`: what is taken
    from a directory when the request names nothing.

    Raises UserError for an input that does not exist or a directory in which nothing fits.
    """
    found: list[InputFile] = []
    for given in request.inputs:
        if given.is_dir():
            paths = _walk(given, request.globs or usual, request.excludes)
            if not paths:
                named = request.globs or (() if usual is SOURCE_GLOBS else usual)
                globs = " ".join(named) or "the usual text or source files (choose with --glob)"
                raise UserError(f"directory {given} holds no file that matches {globs}")
        elif given.is_file():
            paths = [given]
        else:
            raise UserError(f"input {given} does not exist, or is not a file or directory")
        found += [_input_file(path, request.txt_documents) for path in paths]
    return found


def _walk(root: Path, globs: Sequence[str], excludes: Sequence[str]) -> list[Path]:
    """Files below a directory; hidden ones, __pycache__ and links to directories are left out."""

    def wanted(folder: str, name: str) -> bool:
        path = Path(folder, name).relative_to(root).as_posix()
        hidden = name.startswith(".") or name == "__pycache__"
        return not hidden and not any(fnmatch.fnmatch(name, e) or fnmatch.fnmatch(path, e) for e in excludes)

    def unreadable(error: OSError) -> None:
        raise UserError(f"directory {error.filename} cannot be read: {error.strerror}")

    paths = []
    for folder, folders, names in os.walk(root, onerror=unreadable):
        folders[:] = [name for name in folders if wanted(folder, name)]
        fitting = (name for name in names if any(fnmatch.fnmatch(name, glob) for glob in globs))
        paths += [Path(folder, name) for name in fitting if wanted(folder, name)]
    return sorted(path for path in paths if path.is_file())


def _input_file(path: Path, txt_documents: TextDocuments) -> InputFile:
    name = path.name.lower()
    for ending in _COMPRESSED:
        name = name.removesuffix(ending)
    kind: Kind = "file"
    if name.endswith(_JSON):
        kind = "json"
    elif name.endswith(".parquet"):
        kind = "parquet"
    elif name.endswith(".txt"):
        kind = txt_documents
    status = path.stat()
    return InputFile(path, kind, status.st_size, status.st_mtime_ns)


def refuse_arrays(files: Sequence[InputFile]) -> None:
    """Raises UserError for the first file of JSON lines that is one JSON array, whatever its lines are."""
    for file in files:
        if file.kind == "json" and _begins(file) == b"[":
            path, unpacked = file.path, file.path
            read = f"jq -c '.[]' {path}"
            if path.suffix.lower() in _COMPRESSED:
                unpacked = path.with_suffix("")
                read = f"{'gzip' if path.suffix.lower() == '.gz' else 'zstd'} -dc {path} | jq -c '.[]'"
            lines = unpacked.with_suffix(".jsonl" if unpacked.suffix.lower() == ".json" else ".lines.jsonl")
            raise UserError(
                f"{path} begins with [, so it is a JSON array, and what is read is one JSON object (a conversation, a "
                f"document) to a line. Write its elements as lines, and read those: {read} > {lines}"
            )


def _begins(file: InputFile) -> bytes:
    """The first byte of a file that is not blank; nothing where there is none, or it cannot be told."""
    try:
        with open(file.path, "rb") as raw:
            stream = _decompressed(file.path, raw)
            while block := stream.read(_PEEKED):
                if begin := block.lstrip()[:1]:
                    return begin
    except (EOFError, zlib.error, OSError):
        pass  # it is read in a moment, and what is wrong said then
    return b""


def read_chunks(
    files: Sequence[InputFile], keys: Sequence[str], start: Position = Position(), chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Chunk]:
    """Everything from a position on, in order. Raises UserError for a file that is damaged or cannot be read."""
    chunk = Chunk()
    before = sum(file.bytes for file in files[: start.file])
    for number in range(start.file, len(files)):
        file = files[number]
        offset, record = (start.offset, start.record) if number == start.file else (0, 0)
        for block, size, read, at in _read(file, keys, offset, record, chunk_bytes):
            chunk.blocks.append(block)
            chunk.text_bytes += size
            chunk.end = Position(number, *at)
            chunk.disk_bytes = before + min(read, file.bytes)
            if chunk.text_bytes >= chunk_bytes:
                yield chunk
                chunk = Chunk()
        before += file.bytes
        chunk.end = Position(number + 1)
        chunk.disk_bytes = before
    if chunk.blocks:
        yield chunk


_Step = tuple[Block, int, int, tuple[int, int]]
"""A block, its bytes of text, the bytes of the file read so far, and (offset, record) after it."""


def _read(file: InputFile, keys: Sequence[str], offset: int, record: int, size: int) -> Iterator[_Step]:
    try:
        if file.kind == "parquet":
            yield from _read_rows(file, keys, record)
            return
        with open(file.path, "rb") as raw:
            stream = _decompressed(file.path, raw)
            _skip(stream, offset)
            yield from _read_bytes(file, raw, stream, offset, record, size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{file.path} is damaged or cut off: {error}") from error
    except OSError as error:
        raise UserError(f"{file.path} cannot be read: {error.strerror or error}") from error


def _read_bytes(
    file: InputFile, raw: IO[bytes], stream: IO[bytes], offset: int, record: int, size: int
) -> Iterator[_Step]:
    while True:
        whole = file.kind == "file"
        content = stream.read() if whole else _whole_records(stream, file.kind, size)
        if not content and not (whole and offset == 0):
            return
        block = Block(str(file.path), file.kind, record + 1, content)
        offset += len(content)
        record += content.count(b"\n")
        yield block, len(content), raw.tell(), (offset, record)
        if whole:
            return


def _whole_records(stream: IO[bytes], kind: Kind, size: int) -> bytes:
    """At least `size` bytes where there are so many, up to the end of a line or paragraph."""
    content = stream.read(size)
    if not content:
        return b""
    content += stream.readline()
    if kind != "paragraph":
        return content
    lines = [content[content.rfind(b"\n", 0, -1) + 1 :]]
    while lines[-1].strip():
        lines.append(stream.readline())
    return content + b"".join(lines[1:])


def _decompressed(path: Path, raw: IO[bytes]) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw))
    if path.suffix.lower() == ".zst":
        return io.BufferedReader(ZstdStream(raw, path))
    return raw


def _skip(stream: IO[bytes], offset: int) -> None:
    """Go on from an offset of the text; what is compressed is read up to there."""
    if stream.seekable():
        stream.seek(offset)
        return
    while offset > 0:
        read = len(stream.read(min(offset, CHUNK_BYTES)))
        if not read:
            raise EOFError("it is shorter than it was")
        offset -= read


class ZstdStream(io.RawIOBase):
    """Decompressed bytes of a .zst file. The library's own reader takes a file that was cut off for a whole one."""

    def __init__(self, raw: IO[bytes], path: Path) -> None:
        self._library = optional_module("zstandard", f"reading {path}")
        self._raw = raw
        self._frame = self._new_frame()
        self._begun = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; 0 at the end. Raises EOFError when the last frame is cut off, OSError when it is damaged."""
        while not self._ready:
            data = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._begun = self._new_frame(), False
            data = data or self._raw.read(1 << 17)
            if not data:
                if self._begun:
                    raise EOFError("it ends before its data does")
                return 0
            self._begun = True
            try:
                self._ready = memoryview(self._frame.decompress(data))
            except self._library.ZstdError as error:
                raise OSError(f"it is damaged: {error}") from error
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _new_frame(self) -> Any:
        return self._library.ZstdDecompressor(max_window_size=1 << 31).decompressobj()


def _read_rows(file: InputFile, keys: Sequence[str], record: int) -> Iterator[_Step]:
    parquet = optional_module("pyarrow.parquet", f"reading {file.path}")
    try:
        table = parquet.ParquetFile(file.path)
        columns = table.schema_arrow.names
        for key in keys:
            if key not in columns:
                raise UserError(
                    f"{file.path} has no column {key}; it has {', '.join(columns)} (choose with --json-key)"
                )
        rows, total = 0, max(table.metadata.num_rows, 1)
        for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=list(keys)):
            values = list(zip(*(batch.column(key).to_pylist() for key in keys), strict=True))
            skipped = max(0, min(record - rows, len(values)))
            first, rows = rows + skipped, rows + len(values)
            if values[skipped:]:
                size = sum(len(value) for row in values[skipped:] for value in row if isinstance(value, str))
                block = Block(str(file.path), file.kind, first + 1, values[skipped:])
                yield block, size, file.bytes * rows // total, (0, rows)
    except ValueError as error:  # pyarrow's ArrowInvalid is one
        raise UserError(f"{file.path} is not a parquet file or is damaged: {error}") from error
