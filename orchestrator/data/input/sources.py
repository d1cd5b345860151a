"""Finding input files and reading them in chunks, from any position on."""

from __future__ import annotations

import fnmatch
import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from orchestrator.data.input.compression import decompressed
from orchestrator.data.input.json_array import ArrayError, Element, elements
from orchestrator.data.input.optional import optional_module
from orchestrator.data.request import SOURCE_GLOBS, TextDocuments, TextRequest
from orchestrator.errors import JobError, UserError
from orchestrator.files.file_types import COMPRESSIONS, data_kind, is_usual, why_unread
from orchestrator.files.folder_tree import FolderTree, LeftOut, folder_tree

Kind = Literal["json", "line", "paragraph", "file", "parquet"]

CHUNK_BYTES = 1 << 19
"""Text that a worker gets at a time: little enough to share out evenly, enough to make the way there cheap."""
LONGEST_RECORD = 1 << 29
"""Bytes of a line, a paragraph, a file that is one document, or a value of a table, decompressed. More is no text of a
person's but an accident, or meant to use up all memory."""
_BLANKS = 1 << 20
"""Bytes that are looked through for the beginning of a file of JSON."""
_PARQUET_ROWS = 256
_PEEKED = 1 << 12
_TOLD = 10
_NAMED = 3
_JSON = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class InputFile:
    """One file to read. `modified` is in nanoseconds since the epoch."""

    path: Path
    kind: Kind
    bytes: int
    modified: int


@dataclass(frozen=True)
class Inputs:
    """The files to read, and what of the folders they are in cannot be read."""

    files: list[InputFile]
    left_out: list[LeftOut]


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
    lines: tuple[int, ...] | None = None
    """Of the elements of a JSON array, which stand in `content` on a line each: on which of the file's each begins."""


@dataclass
class Chunk:
    """Work for one worker, and where reading stands after it. `disk_bytes` counts what was read of all files."""

    blocks: list[Block] = field(default_factory=list)
    text_bytes: int = 0
    end: Position = Position()
    disk_bytes: int = 0

    @property
    def place(self) -> str:
        """Where it begins, for people."""
        first = self.blocks[0]
        return first.path if first.kind == "file" else f"{first.path}:{first.first}"


def find_inputs(request: TextRequest, usual: Sequence[str] = SOURCE_GLOBS) -> Inputs:
    """All input files, in the order given; those of a directory in the order of their paths. `usual`: what is taken
    from a directory when the request names nothing.

    Raises UserError for an input that does not exist or a directory in which nothing fits.
    """
    found = Inputs([], [])
    for given in request.inputs:
        if given.is_dir():
            tree = _tree(given, request, usual)
            if not tree.files:
                named = request.globs or (() if usual is SOURCE_GLOBS else usual)
                globs = " ".join(named) or "the usual text or source files (choose with --glob)"
                others = "".join(f"; left out is {each}" for each in tree.left_out[:1])
                raise UserError(
                    f"directory {given} holds no file that matches {globs}{others}", code="no_matching_files"
                )
        elif given.is_file():
            tree = FolderTree([given])
        else:
            raise UserError(f"input {given} does not exist, or is not a file or directory", code="missing_input")
        found.files.extend(_input_file(path, request.txt_documents) for path in tree.files)
        found.left_out.extend(tree.left_out)
    return found


def _tree(root: Path, request: TextRequest, usual: Sequence[str]) -> FolderTree:
    """Files below a directory; hidden ones and __pycache__ are not meant."""

    def wanted(path: Path) -> bool:
        name, below = path.name, path.relative_to(root).as_posix()
        hidden = name.startswith(".") or name == "__pycache__"
        return not hidden and not any(fnmatch.fnmatch(name, e) or fnmatch.fnmatch(below, e) for e in request.excludes)

    try:
        tree = folder_tree(root, wanted)
    except OSError as error:
        raise UserError(f"directory {root} cannot be read: {error.strerror}", code="unreadable_folder") from error
    if request.globs:
        tree.files = [path for path in tree.files if any(fnmatch.fnmatch(path.name, glob) for glob in request.globs)]
        return tree
    others = [path for path in tree.files if not is_usual(path.name, usual)]
    tree.files = [path for path in tree.files if is_usual(path.name, usual)]
    tree.left_out += _data_left_out(root, others)
    return tree


def _data_left_out(root: Path, files: Sequence[Path]) -> list[LeftOut]:
    """Of the files in a directory that are not usual, those that look like data: one entry for each kind."""
    kinds: dict[str, list[Path]] = {}
    for path in files:
        if (kind := data_kind(path.name)) is not None:
            kinds.setdefault(kind, []).append(path)
    return [
        LeftOut(root / f"*{kind}", f"{_listed(root, found)}; they {why_unread(kind)}")
        for kind, found in sorted(kinds.items())
    ]


def _listed(root: Path, files: Sequence[Path]) -> str:
    named = ", ".join(str(path.relative_to(root)) for path in files[:_NAMED])
    return named + f" and {len(files) - _NAMED} more" * (len(files) > _NAMED)


def left_out_warnings(left_out: Sequence[LeftOut]) -> list[str]:
    """What to tell a person of what was left out: the first of it, and how much more there is."""
    told = [f"left out: {each}" for each in left_out[:_TOLD]]
    more = len(left_out) - len(told)
    return [*told, f"left out: {more} more links, folders and kinds of files"] if more else told


def _input_file(path: Path, txt_documents: TextDocuments) -> InputFile:
    name = path.name.lower()
    for ending in COMPRESSIONS:
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


def _is_array(file: InputFile) -> bool:
    """Whether a file of JSON is one array of objects, which would otherwise have a line each."""
    head = b""
    with open(file.path, "rb") as raw:
        stream = decompressed(file.path, raw)
        for _ in range(_BLANKS // _PEEKED):
            block = stream.read(_PEEKED)
            head = (head + block).lstrip()
            behind = head[1:].lstrip()
            if behind or not block:
                return head.startswith(b"[") and behind.startswith(b"{")
    return False


def read_chunks(
    files: Sequence[InputFile], keys: Sequence[str], start: Position = Position(), chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Chunk]:
    """Everything from a position on, in order. Raises UserError for a file that is damaged, cannot be read, or holds a
    record that is too long, JobError where memory is short."""
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
        for step in _steps(file, keys, offset, record, size):
            yield step
            record = step[3][1]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{file.path} is damaged or cut off: {error}", code="damaged_input") from error
    except OSError as error:
        # A decompressor's errors are not the system's: they have no strerror.
        code = "unreadable_file" if error.strerror else "damaged_input"
        raise UserError(f"{file.path} cannot be read: {error.strerror or error}", code=code) from error
    except MemoryError as error:
        raise JobError(
            f"{file.path}:{record + 1}: the record that begins here needs more memory than is available",
            code="record_out_of_memory",
        ) from error


def _steps(file: InputFile, keys: Sequence[str], offset: int, record: int, size: int) -> Iterator[_Step]:
    if file.kind == "parquet":
        yield from _read_rows(file, keys, record)
        return
    is_array = file.kind == "json" and _is_array(file)
    with open(file.path, "rb") as raw:
        stream = decompressed(file.path, raw)
        _skip(stream, offset)
        if is_array:
            yield from _read_array(file, raw, stream, offset, record, size)
            return
        yield from _read_bytes(file, raw, stream, offset, record, size)


def _read_bytes(
    file: InputFile, raw: IO[bytes], stream: IO[bytes], offset: int, record: int, size: int
) -> Iterator[_Step]:
    while True:
        whole = file.kind == "file"
        content = _whole_file(file, stream) if whole else _whole_records(file, stream, record, size)
        if not content and not (whole and offset == 0):
            return
        block = Block(str(file.path), file.kind, record + 1, content)
        offset += len(content)
        record += content.count(b"\n")
        yield block, len(content), raw.tell(), (offset, record)
        if whole:
            return


def _read_array(
    file: InputFile, raw: IO[bytes], stream: IO[bytes], offset: int, record: int, size: int
) -> Iterator[_Step]:
    """The elements of a JSON array, as lines."""
    held: list[Element] = []
    length = 0
    try:
        for element in elements(stream, offset, record, LONGEST_RECORD):
            held.append(element)
            length += len(element.content)
            if length >= size:
                yield _step_of(file, held, length, raw.tell())
                held, length = [], 0
    except ArrayError as error:
        raise UserError(f"{file.path}:{error.line}: {error}", code="wrong_record") from error
    if held:
        yield _step_of(file, held, length, raw.tell())


def _step_of(file: InputFile, held: Sequence[Element], length: int, read: int) -> _Step:
    content = b"\n".join(element.content for element in held)
    block = Block(str(file.path), file.kind, held[0].line, content, tuple(element.line for element in held))
    return block, length, read, (held[-1].offset, held[-1].lines)


def _whole_file(file: InputFile, stream: IO[bytes]) -> bytes:
    """Raises UserError for one that is too long."""
    content = stream.read(LONGEST_RECORD + 1)
    if len(content) > LONGEST_RECORD:
        way_out = "--txt-documents line makes a document of each line of a .txt, --exclude leaves the file out"
        raise UserError(
            f"{file.path}: this document has more than {LONGEST_RECORD >> 20} MiB of text: {way_out}",
            code="record_too_long",
        )
    return content


def _whole_records(file: InputFile, stream: IO[bytes], record: int, size: int) -> bytes:
    """At least `size` bytes where there are so many, up to the end of a line or paragraph. `record`: the lines before
    them. Raises UserError for a line or paragraph that is too long."""
    content = stream.read(size)
    if not content:
        return b""
    line = record + content.count(b"\n") + 1  # in which what was read ends
    rest = [_line(file, stream, line, LONGEST_RECORD)]
    last, length = content[content.rfind(b"\n", 0, -1) + 1 :] + rest[0], len(rest[0])
    while file.kind == "paragraph" and last.strip():
        last = _line(file, stream, line, LONGEST_RECORD - length)
        rest.append(last)
        length += len(last)
    return content + b"".join(rest)


def _line(file: InputFile, stream: IO[bytes], number: int, most: int) -> bytes:
    """The rest of a line. Raises UserError where it has more than `most` bytes."""
    found = stream.readline(most + 1)
    if len(found) > most:
        raise UserError(
            f"{file.path}:{number}: this {'paragraph' if file.kind == 'paragraph' else 'line'} has more than "
            f"{LONGEST_RECORD >> 20} MiB, decompressed: no document has that much text. Split it, or leave "
            "out the file",
            code="record_too_long",
        )
    return found


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


def _read_rows(file: InputFile, keys: Sequence[str], record: int) -> Iterator[_Step]:
    parquet = optional_module("pyarrow.parquet", f"reading {file.path}")
    try:
        table = parquet.ParquetFile(file.path)
        columns = table.schema_arrow.names
        for key in keys:
            if key not in columns:
                raise UserError(
                    f"{file.path} has no column {key}; it has {', '.join(columns)} (choose with --json-key)",
                    code="missing_column",
                )
        rows, total = 0, max(table.metadata.num_rows, 1)
        for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=list(keys)):
            values = list(zip(*(batch.column(key).to_pylist() for key in keys), strict=True))
            skipped = max(0, min(record - rows, len(values)))
            first, rows = rows + skipped, rows + len(values)
            for number, row in enumerate(values[skipped:], first + 1):
                if any(isinstance(value, str) and len(value) > LONGEST_RECORD for value in row):
                    raise UserError(
                        f"{file.path}:{number}: this value has more than {LONGEST_RECORD >> 20} MiB of text",
                        code="record_too_long",
                    )
            if values[skipped:]:
                size = sum(len(value) for row in values[skipped:] for value in row if isinstance(value, str))
                block = Block(str(file.path), file.kind, first + 1, values[skipped:])
                yield block, size, file.bytes * rows // total, (0, rows)
    except ValueError as error:  # pyarrow's ArrowInvalid is one
        raise UserError(
            f"{file.path} is not a parquet file or is damaged: {error}", code="not_a_parquet_file"
        ) from error
