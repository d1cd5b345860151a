"""From a block of raw input to the text of its documents."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from orchestrator.data.input.json_values import kind_of, read_json
from orchestrator.data.input.sources import Block
from orchestrator.files.file_types import HEAD, why_no_text

Parsed = TypeVar("Parsed")
_BLANK_LINES = re.compile(rb"(?:\A|\n)(?:[^\S\n]*\n)+")


@dataclass(frozen=True)
class Document:
    """The text of one record, one part per key."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class MalformedRecord:
    """A record that cannot be read: its file, line (or row; None for a whole file) and what is wrong with it."""

    path: str
    line: int | None
    reason: str
    way_out: str = "Fix it"
    """What to do about it, other than to leave it out."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.line is None else f"{self.path}:{self.line}: {self.reason}"


def read_documents(block: Block, keys: Sequence[str]) -> Iterator[Document | MalformedRecord]:
    """Each record of a block, in order. Blank lines are no records; an empty text is one."""

    def texts(record: bytes | tuple[object, ...]) -> tuple[str, ...]:
        if isinstance(record, bytes):
            return _texts_of_json(record, keys) if block.kind == "json" else (record.decode(),)
        return _checked(dict(zip(keys, record, strict=True)), keys)

    for _, read in read_records(block, texts):
        yield read if isinstance(read, MalformedRecord) else Document(read)


def read_records(block: Block, parse: Callable[[Any], Parsed]) -> Iterator[tuple[int | None, Parsed | MalformedRecord]]:
    """The line, or row, of each record of a block, and what `parse` makes of it. What it raises of ValueError, and what
    is neither JSON nor Unicode, or too large for memory, becomes Malformed. So does a file that is no text at all."""
    if block.first == 1 and isinstance(block.content, bytes) and (what := why_no_text(block.content[:HEAD])):
        yield None, MalformedRecord(block.path, None, *what)
        return
    for line, record in _records(block):
        try:
            yield line, parse(record)
        except UnicodeDecodeError as error:
            reason = f"not UTF-8: byte 0x{error.object[error.start]:02x} at {error.start}"
        except UnicodeEncodeError:
            reason = "not valid Unicode: half of a surrogate pair"
        except json.JSONDecodeError as error:
            reason = f"not valid JSON: {error.msg} (column {error.colno})"
        except RecursionError:
            reason = "not readable JSON: nested too deeply"
        except MemoryError:
            reason = "it needs more memory than is available"
        except ValueError as error:
            reason = str(error)
        else:
            continue
        yield line, MalformedRecord(block.path, line, reason)


def _records(block: Block) -> Iterator[tuple[int | None, bytes | tuple[object, ...]]]:
    if not isinstance(block.content, bytes):
        yield from enumerate(block.content, block.first)
    elif block.kind == "file":
        yield None, block.content
    elif block.kind == "paragraph":
        yield from _paragraphs(block.content, block.first)
    else:
        lines = block.content.split(b"\n")
        for number, line in zip(block.lines or count(block.first), lines, strict=False):
            if line.strip():
                yield number, line.removesuffix(b"\r")


def _paragraphs(content: bytes, line: int) -> Iterator[tuple[int, bytes]]:
    start = 0
    for gap in _BLANK_LINES.finditer(content):
        if content[start : gap.start()].strip():
            yield line, content[start : gap.start()]
        line += content.count(b"\n", start, gap.end())
        start = gap.end()
    if content[start:].strip():
        yield line, content[start:].removesuffix(b"\n")


def _texts_of_json(line: bytes, keys: Sequence[str]) -> tuple[str, ...]:
    value = read_json(line)
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object but {kind_of(value)}")
    return _checked(value, keys)


def _checked(record: dict[str, object], keys: Sequence[str]) -> tuple[str, ...]:
    texts = []
    for key in keys:
        if key not in record:
            fields = ", ".join(list(record)[:8]) or "none"
            raise ValueError(f"no field {key!r}; fields: {fields} (choose with --json-key)")
        text = record[key]
        if not isinstance(text, str):
            raise ValueError(f"field {key!r} is not text but {kind_of(text)}")
        if not text.isascii():
            text.encode()  # JSON can hold half of a surrogate pair, which no tokenizer takes
        texts.append(text)
    return tuple(texts)
