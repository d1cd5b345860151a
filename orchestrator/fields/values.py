"""Value types: the shorthand that people write (`4h`, `1.5B`, `969,30,1`) and what it means."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from datetime import date
from typing import Annotated, Any

from pydantic import StringConstraints, WithJsonSchema
from pydantic_core import core_schema

from orchestrator.errors import UserError
from orchestrator.fields.metadata import Metadata
from orchestrator.fields.nodelist import expand_nodelist

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMbBgGtT]?)", re.ASCII)
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_NOT_TEXT = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""Control characters but tab and line feed, halves of surrogate pairs, and what else no YAML or JSON file carries."""
_ENV_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")

TO_BE_WRITTEN = "???"
"""Stands in a job where a person has to write a value, as `migrate` leaves it; no field but free text takes it."""
MAX_SIZE = 2**31 - 1
"""Sizes and seeds fit in 32 bits: what is larger is a slip, and would overflow further on."""
MAX_COUNT = 2**62
"""Samples, tokens and seconds fit in 64 bits."""


class Before(Metadata):
    """A function that is given what is written, before its type is checked. pydantic's BeforeValidator would do, but it
    looks up the function's parameters anew in each field.
    """

    __slots__ = ("function",)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return core_schema.no_info_before_validator_function(self.function, handler(source))


class After(Metadata):
    """A function that is given the value, after its type is checked, as by pydantic's AfterValidator."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return core_schema.no_info_after_validator_function(self.function, handler(source))


class Number(Metadata):
    """The bounds of a number (`ge`, `gt`, `le`, `lt`), which true and false are not."""

    __slots__ = ("bounds",)

    def __init__(self, **bounds: float) -> None:
        self.bounds = bounds

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return core_schema.no_info_before_validator_function(refuse_bool, {**handler(source), **self.bounds})


class KeptWhole(Metadata):
    """A number that is an int where it is whole, also in JSON: the fields that were whole numbers alone once keep their
    stored specs, hashes and scripts.
    """

    __slots__ = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        as_it_is = core_schema.simple_ser_schema("any")
        return core_schema.no_info_after_validator_function(_kept_whole, handler(source), serialization=as_it_is)


def _kept_whole(number: float) -> int | float:
    return int(number) if number.is_integer() else number


def empty_list() -> list[Any]:
    """The default of a list. pydantic reads the parameters of what makes a default; those of `list` itself stand in its
    documentation alone, where Python's own tokenizer is imported and set up to find them.
    """
    return []


def empty_dict() -> dict[Any, Any]:
    """The default of a mapping, as `empty_list` is that of a list."""
    return {}


def refuse_bool(value: Any) -> Any:
    """Pydantic takes true for 1; nobody means that."""
    if isinstance(value, bool):
        raise ValueError(f"expects a number, not {str(value).lower()}")
    return value


def parse_duration(value: Any) -> Any:
    """Seconds from `90`, `30m`, `4h`, `1d12h`; anything else is returned for pydantic to refuse."""
    refuse_bool(value)
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if text.isascii() and text.isdigit() and len(text) <= 20:
        return int(text)
    match = _DURATION.fullmatch(text) if len(text) <= 40 else None
    if not text or match is None:
        raise ValueError("a duration is a number of seconds or like 30s, 15m, 4h, 1d12h")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_count(value: Any) -> Any:
    """An integer from `1000`, `250k`, `1.5B`; a fraction of one is refused."""
    refuse_bool(value)
    if not isinstance(value, str):
        return value
    match = _COUNT.fullmatch(value.strip().replace("_", "").replace(",", "")) if len(value) <= 40 else None
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
    Number(gt=0, le=MAX_COUNT),
    Before(parse_duration),
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
    Number(gt=0, le=MAX_COUNT),
    Before(parse_count),
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

NonNegativeCount = Annotated[
    int,
    Number(ge=0, le=MAX_COUNT),
    Before(parse_count),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\s*\d[\d_,]*(\.\d+)?\s*[kKmMbBgGtT]?\s*$"},
            ],
            "examples": [0, "250k"],
        }
    ),
]
"""The same, or 0."""

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""A name that is safe as a folder name: letters, digits, `.`, `_`, `-`; at most 80."""

VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""A name that a shell accepts for a variable: letters, digits and `_`, not starting with a digit."""

Size = Annotated[int, Number(ge=0, le=MAX_SIZE)]
"""A whole number from 0."""

Positive = Annotated[int, Number(gt=0, le=MAX_SIZE)]
"""A whole number from 1."""

Seed = Annotated[int, Number(ge=0, le=MAX_SIZE)]
"""A seed that every random number generator in use accepts."""

PositiveNumber = Annotated[float, Number(gt=0.0)]
NonNegative = Annotated[float, Number(ge=0.0)]
Fraction = Annotated[float, Number(ge=0.0, le=1.0)]


def _check_text(text: str) -> str:
    if match := _NOT_TEXT.search(text):
        raise ValueError(f"holds the character U+{ord(match.group()):04X}, which is not text")
    return text


def _check_no_references(text: str) -> str:
    if "${" in text:
        raise ValueError("${env:NAME} is resolved in launch.env, tracking.uri and notifications.webhook only")
    return _check_text(text)


def _check_references(text: str) -> str:
    rest = _ENV_REFERENCE.sub("", text)
    if "${" in rest:
        part = rest[rest.index("${") :].partition("}")
        raise ValueError(f"{''.join(part[:2])!r} is not a reference: write ${{env:NAME}}, with a variable's name")
    return _check_text(text)


Text = Annotated[str, After(_check_no_references)]
"""Text that stands for itself."""

ReferringText = Annotated[str, After(_check_references)]
"""Text that may hold `${env:NAME}`: kept as written, resolved on the node by `resolve_environment`."""


def _check_word(text: str) -> str:
    if not text or any(character.isspace() for character in text):
        raise ValueError("expects one word, without spaces")
    return _check_no_references(text)


Word = Annotated[str, After(_check_word), WithJsonSchema({"type": "string", "pattern": r"^\S+$"})]
"""Text without blanks, not empty: a name that SLURM knows, or a list of them with commas."""


_HOST = re.compile(r"[\w.:@\[\],-]+", re.ASCII)


def check_host(text: str) -> str:
    """A machine as `ssh` knows it, or a list of some. Raises ValueError for anything else, options of ssh above all."""
    if text.startswith("-") or not _HOST.fullmatch(text):
        raise ValueError("a machine is written as ssh knows it, such as node7 or user@node7, or node[1-4] for several")
    if not expand_nodelist(text):
        raise ValueError("it names no machine")
    return text


Host = Annotated[str, After(check_host)]
"""A machine as `ssh` knows it: `node7`, `user@node7`, or `node[1-4]` for several."""


def check_day(text: str) -> str:
    """A day of the calendar, as ISO 8601 has it. Raises ValueError for anything else."""
    try:
        is_day = date.fromisoformat(text).isoformat() == text
    except ValueError:
        is_day = False
    if not is_day:
        raise ValueError("expects a day of the calendar, like 2026-11-27")
    return text


Day = Annotated[str, After(check_day), WithJsonSchema({"type": "string", "format": "date"})]
"""A day: `2026-11-27`."""

ShellLine = Annotated[str, After(_check_text)]
"""Text that a shell runs as it is."""

_DEPTH = 8
"""How deep lists and mappings of a plain value may be nested."""


def check_plain(value: Any, depth: int = 0) -> Any:
    """Refuse what JSON does not hold, and text that is none."""
    match value:
        case str():
            _check_no_references(value)
        case bool() | None:
            pass
        case int():
            if abs(value) > MAX_COUNT:
                raise ValueError("holds a number that is too large")
        case float():
            if not math.isfinite(value):
                raise ValueError("expects finite numbers")
        case list() | dict() if depth < _DEPTH:
            for item in value if isinstance(value, list) else (*value, *value.values()):
                check_plain(item, depth + 1)
            if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
                raise ValueError("expects text for keys")
        case _:
            raise ValueError("expects numbers, text, true, false, null, and lists and mappings of them")
    return value


_PLAIN_TYPES = ("number", "string", "boolean", "null", "array", "object")

Plain = Annotated[Any, Before(check_plain), WithJsonSchema({"anyOf": [{"type": name} for name in _PLAIN_TYPES]})]
"""A number, text, true, false, null, or lists and mappings of them."""

_PLUGIN = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)


def _check_plugin(text: str) -> str:
    if _PLUGIN.fullmatch(text) is None:
        raise ValueError("the name of an entry point has only letters, digits, - and _")
    return text


PluginName = Annotated[str, After(_check_plugin)]
"""The name of another package's entry point. Files in run directories are named after it."""

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def _check_import_path(text: str) -> str:
    if len(text) > 200 or _IMPORT_PATH.fullmatch(text) is None:
        raise ValueError("a class is written as module:Class, like my_package.steps:KeywordWeightedLoss")
    module, _, name = text.partition(":")
    if module.endswith(".py"):
        raise ValueError(f"names a module, not its file: write {module.removesuffix('.py')}:{name}")
    return text


ImportPath = Annotated[
    str, After(_check_import_path), WithJsonSchema({"type": "string", "pattern": rf"^{_IMPORT_PATH.pattern}$"})
]
"""A class in a module: `my_package.steps:KeywordWeightedLoss`."""

_MEMORY = re.compile(r"(\d{1,12})([KMGT]?)", re.ASCII | re.IGNORECASE)


def _check_memory(text: str) -> str:
    if _MEMORY.fullmatch(text) is None:
        raise ValueError("a size of memory is a number of MB or like 500G, 64000M, 2T; 0 is all of a node")
    return text


Memory = Annotated[
    str,
    After(_check_memory),
    WithJsonSchema({"type": "string", "pattern": r"^\d{1,12}[kKmMgGtT]?$", "examples": ["500G", "0"]}),
]
"""An amount of memory as SLURM's --mem takes it."""


def megabytes(memory: str) -> int:
    """MB (2^20 bytes, as SLURM counts) of a `Memory`, rounded up."""
    match = _MEMORY.fullmatch(memory)
    assert match is not None, "a Memory has been checked"
    number, unit = int(match.group(1)), match.group(2).upper()
    return -(-number // 1024) if unit == "K" else number * {"": 1, "M": 1, "G": 1024, "T": 1024**2}[unit]


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
            raise UserError(
                f"${{env:{name}}} is used in the spec, but {name} is not set in the environment",
                code="variable_not_set",
            )
        return os.environ[name]

    return _ENV_REFERENCE.sub(value, text)
