"""One labelled example, and the lines of the files that hold them. Light."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.data.input.sources import LONGEST_RECORD
from orchestrator.errors import UserError, file_refusal
from orchestrator.files.file_types import why_unreadable

_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Example:
    """Pairs of texts that are scored, one for each option where there are some, and the number of the right answer."""

    pairs: tuple[tuple[str, str], ...]
    label: int


def cleaned(text: str) -> str:
    """A text on one line, with single spaces and none before a full stop, as Megatron-LM prepares its tasks."""
    text = _SPACE.sub(" ", text).strip()
    for _ in range(3):  # stops in a row share the spaces between them
        text = text.replace(" . ", ". ")
    return text


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file, each after its place, `FILE:LINE`. Raises UserError for what is not text in UTF-8."""
    with file_refusal(path), open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_RECORD + 1), b""), start=1):
            place = f"{path}:{number}"
            if len(line) > LONGEST_RECORD:
                raise UserError(
                    f"{place}: this line has more than {LONGEST_RECORD >> 20} MiB: no example is so long",
                    code="record_too_long",
                )
            try:
                yield place, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                what = why_unreadable(path, line) if number == 1 else None
                raise UserError(
                    f"{place}: {what or f'this is not text in UTF-8: {error.reason}'}",
                    code="binary_file" if what else "not_utf8",
                ) from error
