"""Values of variables and words, in which what only running the script would tell stands as such."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias


@dataclass(frozen=True)
class Unknown:
    """A part of a value that cannot be known without running the script."""

    shown: str
    """As it is written: `$1`, `$(date)`."""
    why: str
    variable: str | None = None
    """The variable that would have to be given."""


Value: TypeAlias = tuple[str | Unknown, ...]


def joined(parts: Iterable[str | Unknown]) -> Value:
    """The parts as one value; neighbouring text is one part."""
    merged: list[str | Unknown] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(last := merged[-1], str):
            merged[-1] = last + part
        elif part != "":
            merged.append(part)
    return tuple(merged)


def known(value: Value) -> str | None:
    """The text of a value; None where a part of it is not known."""
    texts = [part for part in value if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(value) else None


def shown(value: Value) -> str:
    """The value for a person: what is not known as it is written in the script."""
    return "".join(part if isinstance(part, str) else part.shown for part in value)


def unknowns(value: Value) -> list[Unknown]:
    """What is not known of a value."""
    return [part for part in value if isinstance(part, Unknown)]


BLANKS = " \t\n"


def split(value: Value, separators: str = BLANKS) -> list[Value]:
    """The words of an unquoted value, as a shell splits them at the characters of `IFS`.

    The first (last) one is empty where blanks come first (last): it separates from what stands before (behind).
    Raises ValueError for an empty word between other separators.
    """
    if not separators:
        return [value]
    words: list[list[str | Unknown]] = [[]]
    for part in value:
        pieces = _at(separators).split(part) if isinstance(part, str) else [part]
        words[-1].append(pieces[0])
        words.extend([piece] for piece in pieces[1:])
    split_words = [joined(word) for word in words]
    if separators != BLANKS and not all(split_words[:-1]):
        raise ValueError("an empty word between separators")
    inner = [word for word in split_words[1:-1] if word]
    return [split_words[0], *inner, split_words[-1]] if len(split_words) > 1 else split_words


@cache
def _at(separators: str) -> re.Pattern[str]:
    """One separator with the blanks around it, or blanks alone."""
    blanks, others = (
        re.escape("".join(kind)) for kind in (set(separators) & set(BLANKS), set(separators) - set(BLANKS))
    )
    around = f"[{blanks}]*" if blanks else ""
    ways = [way for way in (f"{around}[{others}]{around}" if others else "", f"[{blanks}]+" if blanks else "") if way]
    return re.compile("|".join(ways))
