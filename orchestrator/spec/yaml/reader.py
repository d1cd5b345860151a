"""YAML text as values that know where they were written.

The reader works on YAML's events, so that every key keeps its place, nothing is constructed that is not plain data, and
the size of what is read is bounded. Plain scalars follow YAML 1.2: `1e-4` is a number, `no` and `off` are text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

from orchestrator.errors import Location, Problem
from orchestrator.fields.formatting import dotted
from orchestrator.spec.yaml.syntax_hints import NO_BREAK_SPACE, hint_for

MAX_BYTES = 1_000_000
MAX_DEPTH = 32
MAX_VALUES = 100_000

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_OVERRIDE = re.compile(r"[a-z_]+(\.\w+)+=")
"""How `KEY=VALUE` of a job begins, which is no name that people give to files."""
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_MOST_DIGITS = 400
_HUGE: int = 10**400
"""Stands for every integer of more digits: Python does not read those of some thousand."""
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TEXT_TAGS = frozenset(("!", "tag:yaml.org,2002:str"))

Scalar: TypeAlias = str | int | float | bool | None


class UnreadableValue:
    """Stands for a value that could not be read; the problem has been reported."""


UNREADABLE = UnreadableValue()


class LocatedValue(NamedTuple):
    """A value and where it was written."""

    content: dict[str, LocatedValue] | list[LocatedValue] | Scalar | UnreadableValue
    location: Location
    """Of the key for an entry of a mapping, else of the value."""
    text: str | None = None
    """A plain (unquoted) scalar as it was written."""
    size: int = 1
    """Values in it, itself included."""

    def at(self, location: Location) -> LocatedValue:
        """The same value at another place."""
        return LocatedValue(self.content, location, self.text, self.size)


def read_text(path: Path, noun: str = "job spec") -> str | Problem:
    """The text of a file that is to hold a `noun`, or what is wrong with the file."""
    location = Location(str(path))
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        meant = noun == "job spec" and _OVERRIDE.match(str(path))
        hint = f"to change a value of a job, write --set {path}" if meant else None
        return Problem("there is no such file", hint=hint, location=location, code="file_not_found")
    except IsADirectoryError:
        return Problem(f"is a folder; a {noun} is a YAML file", location=location, code="not_a_file")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return Problem(f"cannot be read: {reason or error}", location=location, code="unreadable_file")
    if len(data) > MAX_BYTES:
        message = f"is larger than {MAX_BYTES // 1000} kB, too large for a {noun}"
        return Problem(message, location=location, code="file_too_large")
    if b"\0" in data:
        message = f"is a binary file; a {noun} is {'' if noun == 'script' else 'YAML '}text"
        return Problem(message, location=location, code="binary_file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        message = f"is not UTF-8: byte 0x{data[error.start]:02x} in line {line}"
        place = Location(str(path), line, column)
        return Problem(message, hint="save the file as UTF-8", location=place, code="not_utf8")


class Parsed(NamedTuple):
    """What a YAML text holds."""

    root: LocatedValue | None
    """None when the text cannot be read any further than a problem."""
    problems: list[Problem]
    incomplete: Sequence[tuple[str | int, ...]] = ()
    """Places of mappings with a key that cannot be read."""


def parse_yaml(text: str, source: str, noun: str = "job spec") -> Parsed:
    """The value of one YAML document, and what is wrong with it."""
    if not text.isascii() and _SURROGATE.search(text):
        return Parsed(None, [Problem("is not UTF-8 text", location=Location(source), code="not_utf8")])
    reader = _Reader(text, source, noun)
    try:
        return Parsed(reader.document(), reader.problems, reader.incomplete)
    except _StopReading as stop:
        return Parsed(None, [*reader.problems, stop.problem])
    except yaml.YAMLError as error:
        return Parsed(None, [*reader.problems, _syntax_problem(error, reader)])


def resolve_scalar(text: str) -> Scalar:
    """The value of a plain scalar in YAML 1.2's core schema."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        digits = text.lstrip("-+")
        if len(digits) > _MOST_DIGITS:
            return -_HUGE if text.startswith("-") else _HUGE
        base = {"0x": 16, "0o": 8}.get(digits[:2], 10)
        return int(text, base)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


class _StopReading(Exception):  # noqa: N818 - it ends the reading and never leaves this module
    def __init__(self, problem: Problem) -> None:
        self.problem = problem


@dataclasses.dataclass
class _Reader:
    text: str
    source: str
    noun: str
    problems: list[Problem] = dataclasses.field(default_factory=list)
    incomplete: list[tuple[str | int, ...]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = _LINE_BREAK.split(self.text)
        self._next: Callable[[], Any]
        self._anchors: dict[str, LocatedValue | None] = {}
        self._values = 0

    def location(self, line: int, column: int) -> Location:
        """Of a position that counts from 0."""
        excerpt = self.lines[line] if line < len(self.lines) else ""
        return Location(self.source, line + 1, column + 1, excerpt)

    def document(self) -> LocatedValue:
        """The value of the only document. Raises yaml.YAMLError for a text that is not YAML."""
        loader = _Loader(self.text)
        self._next = loader.get_event
        try:
            return self._document()
        finally:
            loader.dispose()

    def _document(self) -> LocatedValue:
        self._next()  # the start of the stream
        event = self._next()
        if isinstance(event, yaml.StreamEndEvent):
            return LocatedValue(None, Location(self.source))
        root = self._value(self._next(), (), 0)
        self._next()  # the end of the document
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            self._problem("several_documents", f"a second YAML document starts here; a {self.noun} is one", (), event)
        return root

    def _problem(
        self, code: str, message: str, path: tuple[str | int, ...], event: Any, hint: str | None = None
    ) -> None:
        self.problems.append(self._described(code, message, path, event, hint))

    def _described(
        self, code: str, message: str, path: tuple[str | int, ...], event: Any, hint: str | None = None
    ) -> Problem:
        paths = (dotted(path),) if path else ()
        return Problem(message, paths, hint, self._place(event), code)

    def _place(self, event: Any) -> Location:
        return self.location(event.start_mark.line, event.start_mark.column)

    def _count(self, size: int, event: Any) -> None:
        self._values += size
        if self._values > MAX_VALUES:
            message = f"holds more than {MAX_VALUES:,} values, aliases included"
            raise _StopReading(self._described("too_many_values", message, (), event))

    def _value(self, event: Any, path: tuple[str | int, ...], depth: int) -> LocatedValue:
        if depth > MAX_DEPTH:
            message = f"nested more than {MAX_DEPTH} levels deep"
            raise _StopReading(self._described("nested_too_deep", message, (), event))
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        self._count(1, event)
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(event, path, depth)
        else:
            value = self._mapping(event, path, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _alias(self, event: Any, path: tuple[str | int, ...]) -> LocatedValue:
        if event.anchor not in self._anchors:
            message = f"*{event.anchor} refers to an anchor that is not defined before it"
            self._problem("undefined_anchor", message, path, event)
            return LocatedValue(UNREADABLE, self._place(event))
        target = self._anchors[event.anchor]
        if target is None:
            self._problem("recursive_alias", f"*{event.anchor} refers to itself", path, event)
            return LocatedValue(UNREADABLE, self._place(event))
        self._count(target.size, event)
        return target.at(self._place(event))

    def _tag_is_legal(self, event: Any, path: tuple[str | int, ...]) -> bool:
        if event.tag is None or (isinstance(event, yaml.ScalarEvent) and event.tag in _TEXT_TAGS):
            return True
        tag = event.tag.replace("tag:yaml.org,2002:", "!!")
        hint = "write the plain value, without a tag"
        self._problem("yaml_tag", f"the tag {tag} is not accepted", path, event, hint)
        return False

    def _scalar(self, event: Any, path: tuple[str | int, ...]) -> LocatedValue:
        place = self._place(event)
        if not self._tag_is_legal(event, path):
            return LocatedValue(UNREADABLE, place)
        if event.style or event.tag is not None:
            return LocatedValue(event.value, place)
        return LocatedValue(resolve_scalar(event.value), place, event.value)

    def _sequence(self, start: Any, path: tuple[str | int, ...], depth: int) -> LocatedValue:
        legal = self._tag_is_legal(start, path)
        items: list[LocatedValue] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items)), depth + 1))
        place = self._place(start)
        readable = legal and all(item.content is not UNREADABLE for item in items)
        return LocatedValue(items if readable else UNREADABLE, place, size=1 + sum(item.size for item in items))

    def _mapping(self, start: Any, path: tuple[str | int, ...], depth: int) -> LocatedValue:
        legal = self._tag_is_legal(start, path)
        entries: dict[str, LocatedValue] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._key(event, path, depth)
            value_path = path if key is None else (*path, key)
            value = self._value(self._next(), value_path, depth + 1)
            if key is None:
                self.incomplete.append(path)
                continue
            place = self._place(event)
            if key in entries:
                first = entries[key].location
                message = f"is written twice: here and in line {first.line}"
                self.problems.append(Problem(message, (dotted(value_path),), location=place, code="duplicate_key"))
                entries[key] = LocatedValue(UNREADABLE, first)
            else:
                entries[key] = value.at(place)
        readable = legal and (bool(entries) or path not in self.incomplete)
        place = self._place(start)
        return LocatedValue(
            entries if readable else UNREADABLE, place, size=1 + sum(value.size for value in entries.values())
        )

    def _key(self, event: Any, path: tuple[str | int, ...], depth: int) -> str | None:
        if isinstance(event, yaml.ScalarEvent) and event.tag in (None, *_TEXT_TAGS):
            text = str(event.value)
            if event.style or event.tag is not None:
                return text
            if text.startswith(NO_BREAK_SPACE):  # copied from a web page; to YAML it is a letter like any other
                self._problem("no_break_space", "a no-break space (U+00A0) where YAML expects spaces", path, event)
                return None
            if text == "<<":
                hint = "use `extends: other.yaml`, or an anchor for a whole value"
                self._problem("merge_key", "merge keys (<<) are not accepted", path, event, hint)
                return None
            if isinstance(resolve_scalar(text), str):
                return text
            message = f"a key must be text, not {text or 'nothing'}"
            self._problem("key_not_text", message, path, event, f"quote it: {text!r}")
            return None
        hint = "a value that starts with { or [ needs quotes if it is text"
        message = "a key must be text, not a list, a mapping, an alias or a tagged value"
        self._problem("key_not_text", message, path, event, hint)
        reported = len(self.problems)
        self._value(event, path, depth + 1)
        del self.problems[reported:]
        return None


def _syntax_problem(error: yaml.YAMLError, reader: _Reader) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:  # a character that YAML does not allow
        position = getattr(error, "position", None)
        before = _LINE_BREAK.split(reader.text[:position]) if isinstance(position, int) else [""]
        place = reader.location(len(before) - 1, len(before[-1]))
        return Problem("not YAML: holds a control character", location=place, code="control_character")
    place = reader.location(mark.line, mark.column)
    if not place.excerpt and getattr(error, "context_mark", None):  # the end of the file: point at what is open
        mark = error.context_mark  # type: ignore[attr-defined]
        place = reader.location(mark.line, mark.column)
    excerpt = place.excerpt or ""
    indentation = excerpt[: len(excerpt) - len(excerpt.lstrip())]
    if "\t" in indentation or excerpt[mark.column : mark.column + 1] == "\t":
        return Problem("a tab where YAML wants spaces", location=place, code="tab_indentation")
    problem = getattr(error, "problem", None) or "it cannot be read"
    context = getattr(error, "context", None)
    opened = getattr(error, "context_mark", None) or mark
    hint = hint_for(problem, reader.lines, mark.line, context, opened.line)
    message = f"not YAML: {problem}" + (f" ({context})" if context else "")
    return Problem(message, hint=hint, location=place, code="yaml_syntax")
