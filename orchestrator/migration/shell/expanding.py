"""What words become when their variables are put in. Nothing is run, and no file is looked at."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import translate
from typing import TypeAlias

from orchestrator.migration.shell.arithmetic import evaluate
from orchestrator.migration.shell.syntax import Arithmetic, Literal, Opaque, Parameter, Part, Word
from orchestrator.migration.shell.values import Unknown, Value, joined, known, split

Array: TypeAlias = tuple[Value, ...]
_BRACES = re.compile(r"\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}")
_MAX_DEPTH = 20


@dataclass
class Variables:
    """Variables at a point of a script. Those of `given` keep their values whatever the script says."""

    given: dict[str, Value] = field(default_factory=dict)
    values: dict[str, Value | Array] = field(default_factory=dict)
    arrays: set[str] = field(default_factory=set)
    arguments: list[Value] = field(default_factory=list)
    """`$1`, `$2`, …: those that are known."""
    shifted: int = 0
    """Arguments that the script has passed over."""
    exported: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    """Variables that the script itself has read."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Defaults in the script (`${NAME:-VALUE}`) that were taken, by name."""
    empty: set[str] = field(default_factory=set)
    """Variables that were taken as empty in a condition because nothing sets them."""
    in_condition: bool = False

    def copy(self) -> Variables:
        """The same values, to be changed apart; what was read and taken is kept in common."""
        return Variables(
            self.given,
            dict(self.values),
            set(self.arrays),
            list(self.arguments),
            self.shifted,
            set(self.exported),
            self.read,
            self.defaults,
            self.empty,
            self.in_condition,
        )

    def set(self, name: str, value: Value) -> None:
        """Give a plain variable its value."""
        if name not in self.given:
            self.values[name] = value
            self.arrays.discard(name)

    def set_array(self, name: str, words: Array) -> None:
        """Give an array its words."""
        if name not in self.given:
            self.values[name] = words
            self.arrays.add(name)

    def elements(self, name: str) -> Array | None:
        """The words of an array, or of a plain variable as one of a single word; None where nothing sets it."""
        if name in ("@", "*"):
            return tuple(self.arguments)
        if name.isdigit() and name != "0" and name not in self.given:
            number = int(name)
            return (self.arguments[number - 1],) if number <= len(self.arguments) else None
        self.read.add(name)
        if name in self.given:
            return (self.given[name],)
        value = self.values.get(name)
        if value is None:
            return None
        return value if name in self.arrays else (value,)  # type: ignore[return-value]

    def value(self, name: str) -> Value | None:
        """The value of a plain variable, or the first word of an array; None where nothing sets it."""
        elements = self.elements(name)
        if elements is None:
            return None
        return elements[0] if elements else ()

    def missing(self, name: str, shown: str) -> Value:
        """What stands for a variable that nothing sets."""
        if self.in_condition:
            self.empty.add(name)
            return ()
        if name.isdigit() and name != "0":
            number = str(int(name) + self.shifted)
            return (Unknown(shown, f"argument {number} of the script", number),)
        if name in ("0", "?", "$", "!", "-"):
            return (Unknown(shown, "known only when it runs"),)
        return (Unknown(shown, f"the script does not set {name}", name),)


def fields(word: Word, variables: Variables) -> list[Value]:
    """The words that one word becomes: none, one or several."""
    done: list[Value] = []
    current: list[str | Unknown] = []
    started = False
    for part in word:
        pieces, is_quoted = _pieces(part, variables)
        for number, piece in enumerate(pieces):
            if number:
                if started:
                    done.append(joined(current))
                current, started = [], False
            current.extend(piece)
            started = started or is_quoted or bool(piece)
    if started:
        done.append(joined(current))
    return done


def text(word: Word, variables: Variables) -> Value:
    """What a word becomes where nothing is split, as in an assignment."""
    found: list[str | Unknown] = []
    for part in word:
        if isinstance(part, Parameter) and _is_list(part):
            elements = _elements(part, variables)
            for number, element in enumerate(elements):
                found.extend([" ", *element] if number else element)
        else:
            found.extend(_value(part, variables))
    return joined(found)


def _pieces(part: Part, variables: Variables) -> tuple[list[Value], bool]:
    """What a part adds to its word: (pieces, between which a new word begins; whether they are quoted)."""
    if isinstance(part, Parameter) and _is_list(part):
        elements = _elements(part, variables)
        if part.quoted and "*" in (part.name, _index(part)):
            return [
                joined(piece for n, element in enumerate(elements) for piece in (*([" "] if n else []), *element))
            ], True
        if part.quoted:
            return list(elements), bool(elements)
        apart: list[Value] = []
        for element in elements:
            apart.extend(split(element))
        return apart, False
    if isinstance(part, Literal):
        if not part.quoted and _BRACES.search(part.text):
            return [(Unknown(part.text, "braces that a shell expands"),)], False
        return [(part.text,) if part.text else ()], part.quoted
    value = _value(part, variables)
    return ([value], True) if part.quoted else (split(value), False)


def _index(part: Parameter) -> str | None:
    if part.index is None or len(part.index) != 1 or not isinstance(part.index[0], Literal):
        return None
    return part.index[0].text


def _is_list(part: Parameter) -> bool:
    several = part.name in ("@", "*") or _index(part) in ("@", "*")
    return several and part.operator in ("", ":-", "-", ":+", "+")


def _elements(part: Parameter, variables: Variables) -> Array:
    elements = variables.elements(part.name)
    if part.operator in ("", ":+", "+") and elements is None:
        return () if part.operator else (variables.missing(part.name, part.shown),)
    if part.operator in (":-", "-"):
        return elements or _chosen(part, variables)
    if part.operator in (":+", "+"):
        return _chosen(part, variables) if elements else ()
    assert elements is not None
    return elements


def _chosen(part: Parameter, variables: Variables) -> Array:
    return (text(part.argument, variables),) if part.quoted else tuple(fields(part.argument, variables))


def _value(part: Part, variables: Variables) -> Value:
    if isinstance(part, Literal):
        return (part.text,)
    if isinstance(part, Opaque):
        return (Unknown(part.shown, part.why),)
    if isinstance(part, Arithmetic):
        return calculated(part.expression, variables, part.shown)
    return _parameter(part, variables)


def calculated(expression: Word, variables: Variables, as_written: str) -> Value:
    """The value of an arithmetic expression."""
    inner = text(expression, variables)
    plain = known(inner)
    if plain is None:
        unknown = next(piece for piece in inner if isinstance(piece, Unknown))
        return (Unknown(as_written, unknown.why, unknown.variable),)
    missing: list[Unknown] = []

    def value_of(name: str, depth: int = 0) -> int:
        value = variables.value(name)
        if value is None:
            value = variables.missing(name, name)
        missing.extend(piece for piece in value if isinstance(piece, Unknown))
        content = known(value)
        if content is None or not content.strip():
            return 1 if missing else 0
        if depth > _MAX_DEPTH:
            raise ValueError("variables that refer to each other")
        return evaluate(content, lambda other: value_of(other, depth + 1))

    try:
        number = evaluate(plain, value_of)
    except ValueError as error:
        return (Unknown(as_written, str(error)),)
    return (Unknown(as_written, missing[0].why, missing[0].variable),) if missing else (str(number),)


def _parameter(part: Parameter, variables: Variables) -> Value:
    if part.name == "#" and not part.operator:
        return (str(len(variables.arguments)),)
    if part.operator == "#" and part.argument == () and part.shown.startswith("${#"):
        return _length(part, variables)
    if "@" in (part.name, _index(part)) or "*" in (part.name, _index(part)):
        return (Unknown(part.shown, "not followed by this reader"),)
    value = _element(part, variables)
    if part.operator in _DEFAULTS:
        return _DEFAULTS[part.operator](part, value, variables)
    if value is None:
        value = variables.missing(part.name, part.shown)
    if not part.operator:
        return value
    content, argument = known(value), known(text(part.argument, variables))
    if content is None:
        unknown = next(piece for piece in value if isinstance(piece, Unknown))
        return (Unknown(part.shown, unknown.why, unknown.variable),)
    if argument is None or part.operator not in _CHANGES:
        if part.operator == "!" and (target := variables.value(content)) is not None:
            return target
        return (Unknown(part.shown, "not followed by this reader"),)
    try:
        return (_CHANGES[part.operator](content, argument),)
    except (ValueError, re.error):
        return (Unknown(part.shown, "not followed by this reader"),)


def _element(part: Parameter, variables: Variables) -> Value | None:
    if part.index is None:
        return variables.value(part.name)
    elements = variables.elements(part.name)
    if elements is None:
        return None
    index = known(calculated(part.index, variables, part.shown))
    if index is None or not index.lstrip("-").isdigit():
        return (Unknown(part.shown, "not followed by this reader"),)
    number = int(index)
    return elements[number] if -len(elements) <= number < len(elements) else None


def _length(part: Parameter, variables: Variables) -> Value:
    elements = variables.elements(part.name)
    if elements is None:
        elements = () if variables.in_condition else (variables.missing(part.name, part.shown),)
    if part.name in ("@", "*") or _index(part) in ("@", "*"):
        return (str(len(elements)),)
    content = known(elements[0] if elements else ())
    return (str(len(content)),) if content is not None else (Unknown(part.shown, "the length of what is not known"),)


def _or_default(part: Parameter, value: Value | None, variables: Variables) -> Value:
    if value or (value is not None and ":" not in part.operator):
        return value
    chosen = text(part.argument, variables)
    if value is None and part.operator in (":-", "-", ":=", "="):
        variables.defaults[part.name] = "".join(piece if isinstance(piece, str) else piece.shown for piece in chosen)
    if "=" in part.operator:
        variables.set(part.name, chosen)
    return chosen


def _or_nothing(part: Parameter, value: Value | None, variables: Variables) -> Value:
    is_set = bool(value) if ":" in part.operator else value is not None
    return text(part.argument, variables) if is_set else ()


def _or_fail(part: Parameter, value: Value | None, variables: Variables) -> Value:
    return value if value else variables.missing(part.name, part.shown)


_DEFAULTS: dict[str, Callable[[Parameter, Value | None, Variables], Value]] = {
    **dict.fromkeys((":-", "-", ":=", "="), _or_default),
    **dict.fromkeys((":+", "+"), _or_nothing),
    **dict.fromkeys((":?", "?"), _or_fail),
}


def _without_prefix(content: str, pattern: str, longest: bool) -> str:
    lengths = range(len(content), -1, -1) if longest else range(len(content) + 1)
    shape = re.compile(translate(pattern))
    return next((content[length:] for length in lengths if shape.match(content[:length])), content)


def _without_suffix(content: str, pattern: str, longest: bool) -> str:
    starts = range(len(content) + 1) if longest else range(len(content), -1, -1)
    shape = re.compile(translate(pattern))
    return next((content[:start] for start in starts if shape.match(content[start:])), content)


def _replaced(content: str, argument: str, count: int) -> str:
    pattern, _, replacement = argument.partition("/")
    if not pattern or any(character in pattern for character in "*?["):
        raise ValueError("a pattern")
    return content.replace(pattern, replacement, count)


def _part_of(content: str, argument: str) -> str:
    offset, _, length = argument.partition(":")
    start = int(offset.strip() or "0")
    start = max(len(content) + start, 0) if start < 0 else start
    if not length:
        return content[start:]
    size = int(length)
    return content[start : start + size] if size >= 0 else content[start:size]


def _each(content: str, argument: str, change: Callable[[str], str]) -> str:
    if argument:
        raise ValueError("a pattern")
    return change(content)


_CHANGES: dict[str, Callable[[str, str], str]] = {
    "#": lambda content, pattern: _without_prefix(content, pattern, False),
    "##": lambda content, pattern: _without_prefix(content, pattern, True),
    "%": lambda content, pattern: _without_suffix(content, pattern, False),
    "%%": lambda content, pattern: _without_suffix(content, pattern, True),
    "/": lambda content, argument: _replaced(content, argument, 1),
    "//": lambda content, argument: _replaced(content, argument, -1),
    ":": _part_of,
    "^^": lambda content, argument: _each(content, argument, str.upper),
    ",,": lambda content, argument: _each(content, argument, str.lower),
    "^": lambda content, argument: _each(content, argument, lambda text: text[:1].upper() + text[1:]),
    ",": lambda content, argument: _each(content, argument, lambda text: text[:1].lower() + text[1:]),
}
