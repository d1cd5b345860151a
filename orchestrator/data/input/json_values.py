"""Values of JSON that people wrote: read, and named in the words of JSON, not of Python. Light."""

from __future__ import annotations

import json
import sys
from typing import Any

TOO_MANY_DIGITS = (
    f"a number in it has more than {sys.get_int_max_str_digits()} digits: write it as a text, or leave its field out"
)
"""Python reads no such number, because that would take long."""
_SHOWN = 40
_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
    bytes: "binary data",
}


def read_json(text: str | bytes) -> Any:
    """The value of a text. Raises what `json.loads` does, in words of ours where Python's name one of its functions."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError as error:
        raise ValueError(TOO_MANY_DIGITS) from error


def kind_of(value: object) -> str:
    """What a value is, in words. Tables have more kinds than JSON."""
    return _KINDS.get(type(value), "a value of another kind")


def shown(value: object) -> str:
    """A value as it is written, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
