"""Flags of a command line, as argparse takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.migration.shell.values import Unknown, Value, known, shown

_FLAG = re.compile(r"--?[A-Za-z]")


@dataclass(frozen=True)
class Flag:
    """A flag with what is written behind it."""

    name: str
    """Without dashes, with `-` between its words."""
    words: tuple[Value, ...]
    written: str | None = None
    """As it is written, where that is not its name and words: an older flag."""

    @property
    def shown(self) -> str:
        """As it is written."""
        return self.written or " ".join([f"--{self.name}", *(shown(word) for word in self.words)])

    @property
    def unknown(self) -> Unknown | None:
        """What is not known of its words."""
        return next((part for word in self.words for part in word if isinstance(part, Unknown)), None)


@dataclass(frozen=True)
class CommandLine:
    """Flags, each once (the last one counts), and what belongs to none."""

    flags: dict[str, Flag]
    repeated: tuple[Flag, ...]
    """Flags that a later one of the same name replaced."""
    strays: tuple[Value, ...]


def parse(words: Sequence[Value], takes: Callable[[str], int | None], *, up_to_a_stray: bool = False) -> CommandLine:
    """Read flags. `takes(name)` is how many values a flag has; None where it has any number.

    With `up_to_a_stray` the first word that belongs to no flag ends them, and all from it on are strays: a program of
    its own with its arguments.
    """
    flags: dict[str, Flag] = {}
    repeated: list[Flag] = []
    strays: list[Value] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        name, value = _name(word)
        if name is None:
            if up_to_a_stray:
                strays.extend(words[position - 1 :])
                break
            strays.append(word)
            continue
        values = [] if value is None else [value]
        most = takes(name)
        while position < len(words) and (most is None or len(values) < most) and _name(words[position])[0] is None:
            values.append(words[position])
            position += 1
        if name in flags:
            repeated.append(flags.pop(name))
        flags[name] = Flag(name, tuple(values))
    return CommandLine(flags, tuple(repeated), tuple(strays))


def _name(word: Value) -> tuple[str | None, Value | None]:
    """(name, value behind `=`) of a flag; (None, None) of another word."""
    if not word or not isinstance(word[0], str) or not _FLAG.match(word[0]):
        return None, None
    head, equals, rest = word[0].partition("=")
    if not equals and known(word) is None:
        return None, None
    name = head.lstrip("-").replace("_", "-")
    return name, (tuple(part for part in (rest, *word[1:]) if part != "") if equals else None)
