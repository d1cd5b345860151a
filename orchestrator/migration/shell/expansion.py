"""What words become when their variables are put in. Nothing is run, and no file is looked at."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fnmatch import translate

from orchestrator.migration.shell.arithmetic import evaluate
from orchestrator.migration.shell.syntax import (
    Arithmetic,
    HereDocument,
    Literal,
    Opaque,
    Parameter,
    Part,
    ShellSyntaxError,
    Word,
)
from orchestrator.migration.shell.values import Unknown, Value, joined, known, shown, split, unknowns
from orchestrator.migration.shell.variables import Array, Variables
from orchestrator.migration.shell.words import here_document

_ASSIGNED = re.compile(
    r"([A-Za-z_]\w*)(?:\[[^]]*\])?\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)", re.ASCII
)
_BRACES = re.compile(r"\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}")
_IFS = "how IFS splits it is not followed"
_MAX_DEPTH = 20
_LONGEST_CHANGED = 10_000
"""Cutting patterns off a text takes the square of its length."""


def fields(word: Word, variables: Variables) -> list[Value]:
    """The words that one word becomes: none, one or several."""
    if _BRACES.search(bare(word)):
        return [(Unknown(shown(text(word, variables)), "braces that a shell expands"),)]
    growing = _WordBuilder()
    _grow(growing, word, variables)
    growing.end()
    return growing.done


def bare(word: Word) -> str:
    """What stands in a word without quotes, with a letter for everything else."""
    return "".join(part.text if isinstance(part, Literal) and not part.quoted else "q" for part in word)


class _WordBuilder:
    """Words as they come to be, one part after the other."""

    def __init__(self) -> None:
        self.done: list[Value] = []
        self._current: list[str | Unknown] = []
        self._started = False

    def add(self, pieces: list[Value], is_quoted: bool) -> None:
        """Add to the last word; between two pieces it ends and another begins."""
        for number, piece in enumerate(pieces):
            if number:
                self.end()
            self._current.extend(piece)
            self._started = self._started or is_quoted or bool(piece)

    def end(self) -> None:
        """End the last word, if there is one: quotes begin one even where nothing is in them."""
        if self._started:
            self.done.append(joined(self._current))
        self._current, self._started = [], False


def _grow(growing: _WordBuilder, word: Word, variables: Variables, is_default: bool = False) -> None:
    for part in word:
        chosen = _chosen_word(part, variables)
        if chosen is not None:
            _grow(growing, chosen, variables, is_default=True)
        elif is_default and isinstance(part, Literal) and not part.quoted:
            growing.add(_split((part.text,), variables), False)
        else:
            growing.add(*_pieces(part, variables))


def _chosen_word(part: Part, variables: Variables) -> Word | None:
    """The word behind `:-` or `:+` of an unquoted parameter where that word stands: its own quotes count."""
    if not isinstance(part, Parameter) or part.quoted or part.operator not in (":-", "-", ":+", "+"):
        return None
    elements = variables.elements(part.name) if _is_list(part) else None
    value = _element(part, variables) if not _is_list(part) else (None if not elements else elements[0])
    is_set = bool(value) if ":" in part.operator else value is not None
    if part.operator == ":+" and value and _open(value, text(part.argument, variables)):
        return None
    if is_set == ("+" in part.operator):
        if value is None and "-" in part.operator:
            variables.defaults.setdefault(part.name, shown(text(part.argument, variables)))
        return part.argument
    return None


def text(word: Word, variables: Variables) -> Value:
    """What a word becomes where nothing is split, as in an assignment."""
    found: list[str | Unknown] = []
    for part in word:
        if isinstance(part, Parameter) and _is_list(part):
            found.extend(_listed(part, variables))
        else:
            found.extend(_value(part, variables))
    return joined(found)


def pattern(word: Word, variables: Variables) -> str | None:
    """A word as a pattern of `fnmatch`, in which what is quoted stands for itself; None where it cannot be told."""
    found = ""
    for part in word:
        content = known(text((part,), variables))
        if content is None or (not part.quoted and ("[:" in content or "\\" in content)):
            return None
        found += re.sub(r"[*?[]", r"[\g<0>]", content) if part.quoted else content.replace("[^", "[!")
    return found


def given_text(given: Word | HereDocument, variables: Variables) -> Value:
    """What a command reads from a here-document or a here-string."""
    if not isinstance(given, HereDocument):
        return joined([*text(given, variables), "\n"])
    if given.quoted:
        return (given.text,)
    try:
        return text(here_document(given.text, given.line), variables)
    except ShellSyntaxError as error:
        return (Unknown("<<", error.message),)


def _pieces(part: Part, variables: Variables) -> tuple[list[Value], bool]:
    """What a part adds to its word: (pieces, between which a new word begins; whether they are quoted)."""
    if isinstance(part, Parameter) and _is_list(part):
        if part.quoted and "*" in (part.name, _index(part)):
            return [_listed(part, variables)], True
        elements = _elements(part, variables)
        if part.quoted:
            return list(elements), bool(elements)
        apart: list[Value] = []
        for element in elements:
            apart.extend(_split(element, variables))
        return apart, False
    if isinstance(part, Literal):
        return [(part.text,) if part.text else ()], part.quoted
    value = _value(part, variables)
    return ([value], True) if part.quoted else (_split(value, variables), False)


def _listed(part: Parameter, variables: Variables) -> Value:
    """The words of a list in one: `$*` joins them by the first character of `IFS`."""
    joint = " " if "@" in (part.name, _index(part)) else variables.separators
    between = (joint[:1],) if joint is not None else (Unknown("$IFS", _IFS),)
    elements = _elements(part, variables)
    return joined(piece for n, element in enumerate(elements) for piece in (*(between if n else ()), *element))


def _split(value: Value, variables: Variables) -> list[Value]:
    separators = variables.separators
    try:
        if separators is not None:
            return split(value, separators)
    except ValueError:
        pass
    return [(Unknown(shown(value), _IFS),)] if value else [()]


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
    words = tuple(fields(part.argument, variables))
    return words or ((),) if part.quoted else words


def _value(part: Part, variables: Variables) -> Value:
    if isinstance(part, Literal):
        return (part.text,)
    if isinstance(part, Opaque):
        printed = variables.output(part.shown, variables) if variables.output is not None else None
        return printed if printed is not None else (Unknown(part.shown, part.why),)
    if isinstance(part, Arithmetic):
        return calculated(part.expression, variables, part.shown)
    return _parameter(part, variables)


def assigned_by(expression: str, by: str, variables: Variables) -> bool:
    """Whether an arithmetic expression assigns variables, which are not known after it."""
    names = [match.group(1) or match.group(2) for match in _ASSIGNED.finditer(expression)]
    for name in names:
        variables.set(name, (Unknown(f"${name}", f"set by {by}", name),))
    return bool(names)


def calculated(expression: Word, variables: Variables, as_written: str, by: str | None = None) -> Value:
    """The value of an arithmetic expression; `by` names it where it sets a variable."""
    inner = text(expression, variables)
    if assigned_by(shown(inner), by or as_written, variables):
        return (Unknown(as_written, "an expression that sets a variable"),)
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
        unknown = _first_unknown(tuple(variables.arguments))
        return (str(len(variables.arguments)),) if unknown is None else (replace(unknown, shown=part.shown),)
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
        return value if not part.argument else (Unknown(part.shown, "not followed by this reader"),)
    read_argument = pattern if part.operator in _CUTS else lambda *given: known(text(*given))
    content, argument = known(value), read_argument(part.argument, variables)
    if content is None:
        unknown = next(piece for piece in value if isinstance(piece, Unknown))
        return (Unknown(part.shown, unknown.why, unknown.variable),)
    if argument is None or part.operator not in _CHANGES or len(content) > _LONGEST_CHANGED:
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
    element = elements[number] if -len(elements) <= number < len(elements) else None
    unknown = _first_unknown(elements)
    return element if unknown is None or (element and unknowns(element)) else (replace(unknown, shown=part.shown),)


def _first_unknown(elements: Array) -> Unknown | None:
    """One may be any number of words, which leaves open which word is where."""
    return next((unknown for element in elements for unknown in unknowns(element)), None)


def _length(part: Parameter, variables: Variables) -> Value:
    elements = variables.elements(part.name)
    if elements is None:
        elements = () if variables.in_condition else (variables.missing(part.name, part.shown),)
    if part.name in ("@", "*") or _index(part) in ("@", "*"):
        unknown = _first_unknown(elements)
        return (str(len(elements)),) if unknown is None else (replace(unknown, shown=part.shown),)
    content = known(elements[0] if elements else ())
    return (str(len(content)),) if content is not None else (Unknown(part.shown, "the length of an unknown value"),)


def _or_default(part: Parameter, value: Value | None, variables: Variables) -> Value:
    if value or (value is not None and ":" not in part.operator):
        return value
    chosen = text(part.argument, variables)
    if value is None and part.operator in (":-", "-", ":=", "="):
        variables.defaults[part.name] = shown(chosen)
    if "=" in part.operator:
        variables.set(part.name, chosen)
    return chosen


def _or_nothing(part: Parameter, value: Value | None, variables: Variables) -> Value:
    is_set = bool(value) if ":" in part.operator else value is not None
    chosen = text(part.argument, variables) if is_set else ()
    if value is None:
        variables.empty.add(part.name)
    if part.operator == ":+" and value and _open(value, chosen):
        return (replace(unknowns(value)[0], shown=part.shown),)
    return chosen


def _open(value: Value, chosen: Value) -> bool:
    """Whether only running it would tell if a text without anything unknown stands there: where a value is empty it
    does not.
    """
    return not unknowns(chosen) and not any(isinstance(piece, str) for piece in value)


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


_CUTS: dict[str, Callable[[str, str], str]] = {
    "#": lambda content, pattern: _without_prefix(content, pattern, False),
    "##": lambda content, pattern: _without_prefix(content, pattern, True),
    "%": lambda content, pattern: _without_suffix(content, pattern, False),
    "%%": lambda content, pattern: _without_suffix(content, pattern, True),
}
_CHANGES: dict[str, Callable[[str, str], str]] = {
    **_CUTS,
    "/": lambda content, argument: _replaced(content, argument, 1),
    "//": lambda content, argument: _replaced(content, argument, -1),
    ":": _part_of,
    "^^": lambda content, argument: _each(content, argument, str.upper),
    ",,": lambda content, argument: _each(content, argument, str.lower),
    "^": lambda content, argument: _each(content, argument, lambda text: text[:1].upper() + text[1:]),
    ",": lambda content, argument: _each(content, argument, lambda text: text[:1].lower() + text[1:]),
}
