"""What may be wrong where a YAML parser stops: it points at the line after the slip."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

_NO_COLON = re.compile(r"(?:- +)?([A-Za-z_][\w.-]*)(?: +([^\s#].*))?")
_NO_SPACE = re.compile(r"(?:- +)?([A-Za-z_][\w.-]*):([^\s:/].*)")
_ABOUT_KEYS = ("did not find expected key", "could not find expected ':'", "expected <block end>", "mapping values")
_UNCLOSED = {
    "while parsing a flow mapping": "the {{ of line {} is not closed, or lacks a comma",
    "while parsing a flow sequence": "the [ of line {} is not closed, or lacks a comma",
    "while scanning a quoted scalar": "the quote of line {} is not closed",
}
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
_COLUMNS = "keys of one mapping start in the same column"


def hint_for(problem: str, lines: Sequence[str], line: int, context: str | None = None, opened: int = 0) -> str | None:
    """The way out of a parser's problem in a line; None where there is none. `context` is what the parser was in since
    line `opened`. Lines count from 0.
    """
    if context in _UNCLOSED:
        return _UNCLOSED[context].format(opened + 1)
    if not any(said in problem for said in _ABOUT_KEYS):
        return None
    last = min(line, len(lines) - 1)
    about = list(islice((number for number in range(last, -1, -1) if _bare(lines[number])), 2))
    for number in about:
        if NO_BREAK_SPACE in lines[number]:
            return f"line {number + 1} has a no-break space (U+00A0), which is not a space in YAML: write a plain space"
        if slip := _slip(_bare(lines[number])):
            return f"line {number + 1} {slip}"
    if len(about) == 2 and about[0] == line:
        before = about[1]
        column, other = _column(lines[line]), _column(lines[before])
        if column != other and not _bare(lines[before]).endswith(":"):
            return f"{_COLUMNS}: line {line + 1} starts in column {column}, line {before + 1} in column {other}"
    if "mapping values" in problem:
        return f"a value that holds a colon and a space needs quotes; {_COLUMNS}"
    return f"an earlier line may lack its colon; {_COLUMNS}"


def _bare(line: str) -> str:
    """A line without its indentation and comment."""
    return re.sub(r"(^|\s)#.*", "", line).strip()


def _column(line: str) -> int:
    return len(line) - len(line.lstrip()) + 1


def _slip(text: str) -> str | None:
    """What a line's key lacks: its colon, or the space after it."""
    if found := _NO_SPACE.fullmatch(text):
        return f"lacks a space after its colon: {found[1]}: {found[2]}"
    found = _NO_COLON.fullmatch(text)
    if found is None or ": " in text or text.endswith(":"):
        return None
    return f"may lack its colon: {found[1]}:" + (f" {found[2]}" if found[2] else "")
