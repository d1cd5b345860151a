"""How the value of a flag of Megatron-LM is read and written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_WHOLE = re.compile(r"\d+(?:_\d+)*", re.ASCII)
_PATTERN = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?")


@dataclass(frozen=True)
class Kind:
    """How the value of a flag is read and written."""

    values: int
    """Words behind the flag."""
    read: Callable[[str], Any]
    """Raises ValueError for what the field cannot take."""
    write: Callable[[Any], str | None]
    """None for what the flag cannot say."""
    is_choice: bool = False
    """Another word is something that this version does not have, and no slip."""


def whole_number(text: str) -> int | None:
    """A whole number as argparse reads it (`1_000_000`); None for other text."""
    return int(text) if _WHOLE.fullmatch(text) and len(text) < 20 else None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = _number(text, "a whole number")
    if not number.is_integer():  # infinity is none either
        raise ValueError(f"{text!r} is not a whole number")
    return int(number)


def _number(text: str, kind: str = "a number") -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {kind}") from None


def _number_text(number: Any) -> str:
    return repr(number)


def _frequency(text: str) -> int | list[int]:
    """One layer in so many, or Megatron-LM's expression of a list: `([0]*1+[1]*26)`. Raises ValueError."""
    plain = text.replace(" ", "")
    if plain.isascii() and plain.isdigit():
        return int(plain)
    if plain.startswith("(") and plain.endswith(")"):
        plain = plain[1:-1]
    layers: list[int] = []
    for term in plain.split("+"):
        found = _PATTERN.fullmatch(term)
        if found is None:
            raise ValueError(f"{text} is neither a number nor a sum of lists like [0]*1+[1]*26")
        layers += [int(each) for each in found[1].split(",")] * int(found[2] or 1)
    return layers


def _frequency_text(value: int | list[int]) -> str:
    return str(value) if isinstance(value, int) else f"[{','.join(map(str, value))}]"


WHOLE = Kind(1, _whole, lambda number: str(number) if isinstance(number, int) else None)
NUMBER = Kind(1, _number, _number_text)
NUMBER_OR_ZERO = Kind(1, lambda text: _number(text) or None, _number_text)
"""A number, where 0 is none."""
TEXT = Kind(1, str, str)
MINUTES = Kind(1, lambda text: _whole(text) * 60, lambda s: str(s // 60) if s % 60 == 0 else None)
FREQUENCY = Kind(1, _frequency, _frequency_text)
"""Which layers: one in so many, or a list of 0 and 1."""


def switch(value: Any) -> Kind:
    """A flag without values that stands for one."""
    return Kind(0, lambda text: value, lambda given: "" if given == value else None)


def choice(names: Mapping[str, Any], others: Mapping[str, Any] | None = None) -> Kind:
    """A flag with one of several words; `others` are those of earlier releases and forks, read and never written."""
    known = {**names, **(others or {})}

    def read(text: str) -> Any:
        if text not in known:
            raise ValueError(f"this version supports {', '.join(names)}")
        return known[text]

    def write(value: Any) -> str | None:
        return next((name for name, meant in names.items() if meant == value), None)

    return Kind(1, read, write, is_choice=True)


def same(*names: str) -> Kind:
    """A flag whose words are ours."""
    return choice({name: name for name in names})
