"""How a script changes its variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.migration.shell.expansion import assigned_by, bare, calculated, fields, text
from orchestrator.migration.shell.syntax import Assignment
from orchestrator.migration.shell.values import BLANKS, Unknown, Value, joined, known, shown, unknowns
from orchestrator.migration.shell.variables import Variables

_LONGEST_ARRAY = 10_000
_DECLARED = re.compile(r"([A-Za-z_]\w*)(=|$)", re.ASCII)
_GAPS = "an array with gaps is not followed"
_KEYED = re.compile(r"\[.*\]\+?=")
_OTHER_KINDS = re.compile("[Ailnu]")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def assign(assignment: Assignment, variables: Variables, *, is_local: bool = False) -> None:
    """Do an assignment, of a function's own variable or another. What is added to is not read by that."""
    was_read = assignment.name in variables.read
    _assign(assignment, variables, is_local)
    if assignment.append and not was_read:
        variables.read.discard(assignment.name)


def _assign(assignment: Assignment, variables: Variables, is_local: bool) -> None:
    name = assignment.name
    words = tuple(each for word in assignment.words or () for each in fields(word, variables))
    value = text(assignment.value, variables)
    if is_local:
        variables.make_local(name)
    if any(_KEYED.match(bare(word)) for word in assignment.words or ()):
        _lose(name, "an array with keys is not followed", variables)
    elif assignment.words is not None:
        earlier = variables.elements(name) or () if assignment.append else ()
        variables.set_array(name, earlier + words)
    elif assignment.index is not None or name in variables.arrays:
        _assign_element(assignment, value, variables)
    elif assignment.append:
        variables.set(name, joined([*(variables.value(name) or ()), *value]))
    else:
        variables.set(name, value)


def _lose(name: str, why: str, variables: Variables) -> None:
    variables.set(name, (Unknown(f"${{{name}}}", why, name),))


def _assign_element(assignment: Assignment, value: Value, variables: Variables) -> None:
    elements = list(variables.elements(assignment.name) or ())
    index = known(calculated(assignment.index or (), variables, assignment.name))
    number = int(index) if index is not None and index.isdigit() else _LONGEST_ARRAY
    if number > len(elements) or number >= _LONGEST_ARRAY or any(unknowns(each) for each in elements):
        _lose(assignment.name, _GAPS, variables)
        return
    earlier = elements[number] if assignment.append and number < len(elements) else ()
    elements[number : number + 1] = [joined([*earlier, *value])]
    variables.set_array(assignment.name, tuple(elements))


def declare(command: str, assignments: Sequence[Assignment], words: Sequence[Value], variables: Variables) -> None:
    """`export NAME`, `local NAME=VALUE`, `declare -x "NAME=VALUE"`: what is set, a function's own and exported."""
    options = "".join(text for word in words if (text := known(word) or "").startswith("-"))
    is_local = command in ("local", "declare", "typeset") and "g" not in options
    names = [assignment.name for assignment in assignments]
    for assignment in assignments:
        assign(assignment, variables, is_local=is_local)
    for word in words:
        start = word[0] if word and isinstance(word[0], str) else ""
        if match := _DECLARED.match(start):
            names.append(match.group(1))
            if is_local:
                variables.make_local(match.group(1))
            if match.group(2):
                variables.set(match.group(1), joined([start[match.end() :], *word[1:]]))
    if command == "export" or "x" in options:
        variables.exported.update(names)
    for name in names if _OTHER_KINDS.search(options) else ():
        if not (known(variables.plain_value(name)) or "").isdecimal():
            _lose(name, f"what {command} {options} makes of it is not followed", variables)


def _let(words: Sequence[Value], line: int, variables: Variables) -> bool | None:
    for word in words[1:]:
        assigned_by(shown(word), f"an expression in line {line}", variables)
    return None


def _read_from_outside(words: Sequence[Value], line: int, variables: Variables) -> bool | None:
    for word in words[1:]:
        match = _NAME.match(known(word) or "")
        if match:
            unknown = Unknown(f"${match.group()}", f"set by a command in line {line}", match.group())
            variables.set(match.group(), (unknown,))
    return None


def read_given(words: Sequence[Value], given: Value, line: int, variables: Variables) -> bool | None:
    """`read` of a text that stands in the script."""
    asked = _read_options(words[1:])
    if asked is None or not asked.names or variables.separators != BLANKS:
        return _read_from_outside(words, line, variables)
    content = given if asked.whole else _first_line(given)
    text = known(content)
    if text is None and (len(asked.names) > 1 or asked.is_array):
        return _read_from_outside(words, line, variables)
    if "\\" in shown(content) and not asked.raw:
        return _read_from_outside(words, line, variables)
    if asked.is_array:
        variables.set_array(asked.names[0], tuple((word,) for word in (text or "").split()))
    elif len(asked.names) == 1:
        variables.set(asked.names[0], _stripped(content))
    else:
        parts = (text or "").split(None, len(asked.names) - 1)
        for number, name in enumerate(asked.names):
            variables.set(name, (parts[number].rstrip(),) if number < len(parts) else ())
    return not asked.whole  # the end of the text comes before the character that was waited for


@dataclass
class _ReadCommand:
    """What `read` is to do."""

    names: list[str] = field(default_factory=list)
    raw: bool = False
    whole: bool = False
    is_array: bool = False


def _read_options(words: Sequence[Value]) -> _ReadCommand | None:
    """None where there is one that is not followed."""
    asked = _ReadCommand()
    texts = [known(word) for word in words]
    while texts:
        word = texts.pop(0)
        if word is None or not word.startswith("-"):
            asked.names = [name for name in (word, *texts) if name is not None and _NAME.fullmatch(name)]
            return asked if len(asked.names) == 1 + len(texts) else None
        options = word[1:]
        while options:
            option, options = options[0], options[1:]
            if option == "r":
                asked.raw = True
            elif option == "a" and not options:
                asked.is_array = True
            elif option == "d" and not options and texts and texts.pop(0) in ("", "\0"):
                asked.whole = True
            else:
                return None
    return None


def _first_line(value: Value) -> Value:
    line: list[str | Unknown] = []
    for part in value:
        before, newline, _ = part.partition("\n") if isinstance(part, str) else (part, "", "")
        line.append(before)
        if newline:
            break
    return joined(line)


def _stripped(value: Value) -> Value:
    parts = list(value)
    if parts and isinstance(first := parts[0], str):
        parts[0] = first.lstrip(" \t\n")
    if parts and isinstance(last := parts[-1], str):
        parts[-1] = last.rstrip(" \t\n")
    return joined(parts)


def _printf(words: Sequence[Value], line: int, variables: Variables) -> bool | None:
    if len(words) > 2 and known(words[1]) == "-v":
        return _read_from_outside(words[1:3], line, variables)
    return None


def _unset(words: Sequence[Value], line: int, variables: Variables) -> bool | None:
    for word in words[1:]:
        name, index, _ = (known(word) or "").partition("[")
        if index and name in variables.values:
            _lose(name, _GAPS, variables)
        elif not index:
            variables.values.pop(name, None)
            variables.arrays.discard(name)
    return True


def _shift(words: Sequence[Value], line: int, variables: Variables) -> bool | None:
    count = known(words[1]) if len(words) > 1 else "1"
    number = int(count) if count is not None and count.isdigit() and len(count) < 9 else 1
    variables.arguments = variables.arguments[number:]
    variables.shifted += number
    return True


def _set(words: Sequence[Value], line: int, variables: Variables) -> bool | None:
    arguments, is_whole = list(words[1:]), False
    while arguments and (option := known(arguments[0])) is not None and option[:1] in ("-", "+"):
        del arguments[: 2 if option.endswith("o") else 1]  # -euo pipefail
        if option in ("--", "-"):
            is_whole = option == "--"
            break
    if arguments or is_whole:
        variables.arguments = arguments
    return True


ON_VARIABLES: dict[str | None, Callable[[Sequence[Value], int, Variables], bool | None]] = {
    **dict.fromkeys(("read", "mapfile", "readarray", "getopts"), _read_from_outside),
    **dict.fromkeys((":", "true"), lambda words, line, variables: True),
    "false": lambda words, line, variables: False,
    "let": _let,
    "printf": _printf,
    "unset": _unset,
    "shift": _shift,
    "set": _set,
}
"""Commands of the shell that are about its variables, and those that do nothing; each says whether it succeeds."""
