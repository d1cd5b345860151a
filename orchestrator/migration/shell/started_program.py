"""What a script would start."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from orchestrator.migration.shell.values import Unknown, Value, known
from orchestrator.migration.shell.variables import Variables

_OWN_FOLDER = re.compile(r"^[$`][^|;]*\bdirname\b[^|;]*(?:\$0|\$\{0\}|\bBASH_SOURCE\b)[^|;]*$")
_SHELLS = ("sh", "bash", "zsh", "dash")


@dataclass(frozen=True)
class StartedCommand:
    """A command that the script would start."""

    line: int
    words: tuple[Value, ...]
    environment: dict[str, Value]
    """Variables that are exported, or set before the command."""
    read: frozenset[str]
    """Variables that the script itself has read by then."""


@dataclass
class Script:
    """What a script would do, so far as that can be told."""

    commands: list[StartedCommand] = field(default_factory=list)
    variables: Variables = field(default_factory=Variables)
    """At its end."""
    notes: list[str] = field(default_factory=list)
    """What was assumed, and what was not followed."""


def beside_script(path: Value) -> str | None:
    """A path that begins with the folder of the script, as seen from there: `$(dirname "$0")/common.sh`; else None."""
    folder, rest = (path[0], known(path[1:])) if path else (None, None)
    if not isinstance(folder, Unknown) or not rest or not _OWN_FOLDER.search(folder.shown) or ".." in folder.shown:
        return None
    return f".{rest}"


@dataclass(frozen=True)
class ShellText:
    """A text that a shell is started with: `srun sh -c TEXT sh ARGUMENTS`."""

    before: tuple[Value, ...]
    text: Value
    arguments: list[Value]


def shell_text(words: Sequence[Value]) -> ShellText | None:
    """The text that a shell is started with; None where none is."""
    for number, word in enumerate(words):
        if PurePath(known(word) or "").name in _SHELLS:
            behind = words[number + 1 :]
            if (place := _place_of_text(behind)) is not None:
                return ShellText(tuple(words[:number]), behind[place], list(behind[place + 2 :]))
    return None


def _place_of_text(words: Sequence[Value]) -> int | None:
    """Of `sh -c TEXT`, given what stands behind `sh`."""
    for number, word in enumerate(words[:-1]):
        option = known(word)
        if option is None or not option.startswith("-"):
            return None
        if not option.startswith("--") and option.endswith("c"):
            return number + 1
    return None
