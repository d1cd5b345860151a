"""How paths and values stand in messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

_SHOWN = 1000
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_RESERVED = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))


def dotted(path: tuple[str | int, ...]) -> str:
    """`data.blend[1].weight` for ("data", "blend", 1, "weight")."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def show(value: Any) -> str:
    """A value in YAML's words, shortened to fit a line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of more than 40 digits"
    # Of a long text its beginning alone is written out.
    return shorten(repr(value[:_SHOWN] if isinstance(value, str | bytes) else value))


def shorten(text: str, limit: int = 80) -> str:
    """Text of one line that fits a message."""
    if len(text) <= limit and text.isprintable():
        return text
    line = "".join(character if character.isprintable() else " " for character in text[: limit + 1])
    return line if len(text) <= limit else line[: limit - 1] + "…"


def few(problems: Sequence[Any], text_of: Callable[[Any], str] = str, most: int = 5, limit: int = 300) -> str:
    """The first of several problems, each shortened, and how many more there are: who made a mistake a million times
    is told of it once. `text_of`, which may take its time, is asked about those alone.
    """
    more = [f"… and {len(problems) - most} more"] if len(problems) > most else []
    return "; ".join([*(shorten(text_of(each), limit) for each in problems[:most]), *more])


def any_of(names: list[str]) -> str:
    """`a, b or c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def as_yaml(value: Any) -> str:
    """A value as YAML on one line; JSON is YAML, but plain words need no quotes."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    return json.dumps(value, ensure_ascii=False)
