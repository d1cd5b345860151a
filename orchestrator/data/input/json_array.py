"""A file that is one JSON array, element by element: no more of it is in memory than one of them needs."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, NamedTuple

from orchestrator.data.input.json_values import TOO_MANY_DIGITS

PIECE = 1 << 18
_BLANKS = re.compile(r"[ \t\r\n]*")
_BEHIND = tuple(",] \t\r\n")
_UNFINISHED = 16
"""Characters before the end of what was read in which an error may be that more has to be read: of a number, a word or
an escape. A text that does not end is told by its message."""


class Element(NamedTuple):
    """One element of an array."""

    content: bytes
    """On one line."""
    line: int
    """On which it begins, from 1."""
    offset: int
    """Of the byte behind it."""
    lines: int
    """Line breaks before that."""


class ArrayError(ValueError):
    """A file that is no JSON array, or has an element that is too long: on which line, and why."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def elements(stream: IO[bytes], offset: int, lines: int, most: int) -> Iterator[Element]:
    """Those of a stream that stands at its beginning, or behind an element, `offset` bytes and `lines` line breaks from
    there. Raises ArrayError where there is no more of an array, or an element has more than `most` characters."""
    array = _Array(stream, offset, lines, most)
    if offset == 0:
        array.mark("[")
        is_over = bool(array.mark("]", is_needed=False))
    else:
        is_over = array.mark(",]") == "]"
    while not is_over:
        array.skip_blanks()
        line = array.lines + 1
        content = array.value().replace("\r", " ").replace("\n", " ")  # within texts JSON has neither
        yield Element(content.encode(), line, array.offset, array.lines)
        is_over = array.mark(",]") == "]"
    array.refuse_more()


class _Array:
    """What was read of a stream and not taken yet: `_text` from `_at` on."""

    def __init__(self, stream: IO[bytes], offset: int, lines: int, most: int) -> None:
        self._stream, self.offset, self.lines, self._most = stream, offset, lines, most
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._scan = json.JSONDecoder().raw_decode
        self._text, self._at, self._has_ended = "", 0, False

    def mark(self, marks: str, *, is_needed: bool = True) -> str:
        """Take one of some characters; empty where another comes and none is needed."""
        self.skip_blanks()
        found = self._text[self._at : self._at + 1]
        if found and found in marks:
            return self._take(1)
        if is_needed:
            wanted = " or ".join(marks)
            raise ArrayError(self.lines + 1, f"not a JSON array: {found or 'its end'} where {wanted} is expected")
        return ""

    def skip_blanks(self) -> None:
        """Up to what is no blank, or the end."""
        while True:
            match = _BLANKS.match(self._text, self._at)
            assert match is not None, "it matches nothing, too"
            self._take(match.end() - self._at)
            if self._at < len(self._text) or not self._reads_more():
                return

    def value(self) -> str:
        """Take a value, as it is written."""
        while True:
            try:
                _, end = self._scan(self._text, self._at)
            except json.JSONDecodeError as error:
                is_open = error.msg.startswith("Unterminated string") or error.pos > len(self._text) - _UNFINISHED
                if not is_open or not self._reads_more():
                    raise ArrayError(
                        self.lines + 1, f"not valid JSON in the value that begins here: {error.msg}"
                    ) from error
            except ValueError as error:
                raise ArrayError(
                    self.lines + 1, f"not readable JSON in the value that begins here: {TOO_MANY_DIGITS}"
                ) from error
            except RecursionError as error:
                raise ArrayError(self.lines + 1, "not readable JSON: nested too deeply") from error
            else:
                is_whole = self._text[end : end + 1] in _BEHIND  # a number may go on
                if end - self._at <= self._most and (is_whole or not self._reads_more()):
                    return self._take(end - self._at)
            if len(self._text) - self._at > self._most:
                raise ArrayError(self.lines + 1, f"the value that begins here has more than {self._most >> 20} MiB")

    def refuse_more(self) -> None:
        """Raises ArrayError for anything behind the array."""
        self.skip_blanks()
        if self._at < len(self._text):
            raise ArrayError(self.lines + 1, "a JSON array ends before this: the rest is not read")

    def _take(self, size: int) -> str:
        taken = self._text[self._at : self._at + size]
        self._at += size
        self.offset += len(taken) if taken.isascii() else len(taken.encode())
        self.lines += taken.count("\n")
        return taken

    def _reads_more(self) -> bool:
        """Whether there was more: at least as much again, so that a long value is not tried often."""
        left = self._text[self._at :]
        try:
            piece = b"" if self._has_ended else self._stream.read(max(PIECE, len(left)))
            self._has_ended = not piece
            self._text, self._at = left + self._decoder.decode(piece, final=self._has_ended), 0
        except UnicodeDecodeError as error:
            raise ArrayError(self.lines + 1, f"not UTF-8 in what follows: {error.reason}") from error
        return not self._has_ended
