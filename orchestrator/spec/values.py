"""Value types: the shorthand that people write (`4h`, `1.5B`, `969,30,1`) and what it means."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema

from orchestrator.errors import UserError

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMbBgGtT]?)")
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_ENV_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


def parse_duration(value: Any) -> Any:
    """Seconds from `90`, `30m`, `4h`, `1d12h`; anything else is returned for pydantic to refuse."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if text.isdigit():
        return int(text)
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError("a duration is a number of seconds or like 30s, 15m, 4h, 1d12h")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_count(value: Any) -> Any:
    """An integer from `1000`, `250k`, `1.5B`; a fraction of one is refused."""
    if not isinstance(value, str):
        return value
    match = _COUNT.fullmatch(value.strip().replace("_", "").replace(",", ""))
    if match is None:
        raise ValueError("a count is an integer or like 250k, 10M, 1.5B, 2T")
    number, unit = match.groups()
    whole, _, fraction = number.partition(".")
    scale = _COUNT_UNITS[unit.lower()]
    scaled = int(whole + fraction) * scale
    if scaled % 10 ** len(fraction):
        raise ValueError(f"{value} is not a whole number")
    return scaled // 10 ** len(fraction)


Duration = Annotated[
    int,
    BeforeValidator(parse_duration),
    Field(gt=0),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^\s*(\d+|(\d+d)?(\d+h)?(\d+m)?(\d+s)?)\s*$"},
            ],
            "examples": ["4h", "30m", "90s"],
        }
    ),
]
"""A positive number of seconds; written as `90`, `30m`, `4h`, `1d12h`."""

Count = Annotated[
    int,
    BeforeValidator(parse_count),
    Field(gt=0),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^\s*\d[\d_,]*(\.\d+)?\s*[kKmMbBgGtT]?\s*$"},
            ],
            "examples": ["1.5B", "250k"],
        }
    ),
]
"""A positive whole number; written as `1000`, `250k`, `10M`, `1.5B`, `2T`."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
"""A name that is safe as a folder name: letters, digits, `.`, `_`, `-`; at most 80."""

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


def environment_references(text: str) -> list[str]:
    """The names in the `${env:NAME}` references of a text."""
    return _ENV_REFERENCE.findall(text)


def resolve_environment(text: str) -> str:
    """The text with each `${env:NAME}` replaced; only ever called where the value is used, never to store it.

    Raises UserError when a variable is not set.
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise UserError(f"${{env:{name}}} is used in the spec, but {name} is not set in the environment")
        return os.environ[name]

    return _ENV_REFERENCE.sub(value, text)
