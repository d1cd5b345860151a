"""A script followed, and in it what `$(…)` prints where that can be told: by functions of its own, `echo`, `printf`,
and `cat` of a here-document. No command is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from orchestrator.errors import UserError
from orchestrator.migration.shell.conditions import Answer
from orchestrator.migration.shell.expansion import given_text
from orchestrator.migration.shell.interpreter import Break, Exit, Follower, Return
from orchestrator.migration.shell.parser import read_script
from orchestrator.migration.shell.started_program import Script
from orchestrator.migration.shell.syntax import Block, Command, Group, Pipeline, ShellSyntaxError, Simple
from orchestrator.migration.shell.values import Unknown, Value, joined, known
from orchestrator.migration.shell.variables import Variables

_PRINTING = ("echo", "printf", "cat")
_LONGEST = 1_000_000
_FIRST = re.compile(r"\s*([\w:.-]+)(?=[\s);&|]|$)")


def follow(
    script: str,
    variables: Variables,
    is_wanted: Callable[[Sequence[Value]], bool],
    read_file: Callable[[str], str | None] = lambda path: None,
) -> Script:
    """Follow a script; of the commands it would start, those are kept that `is_wanted` by their words.

    `read_file` gives the text of a file that is sourced, None where there is none. Raises ShellSyntaxError.
    """
    follower = Follower(variables, is_wanted, read_file)
    variables.output = partial(_output, follower)
    try:
        with suppress(Exit, Return, Break):
            follower.block(read_script(script))
    except RecursionError:
        raise UserError("the script is nested too deeply to be followed", code="nested_too_deep") from None
    return Script(follower.commands, follower.variables, follower.notes)


def _output(outer: Follower, substitution: str, variables: Variables) -> Value | None:
    """What a substitution prints in a script on its way; None where only running it would tell."""
    is_dollar = substitution.startswith("$(")
    if not is_dollar and (substitution[:1] != "`" or "\\" in substitution):
        return None
    commands = substitution[2:-1] if is_dollar else substitution[1:-1]
    first = _FIRST.match(commands)
    if first is None or not (first.group(1) in _PRINTING or first.group(1) in outer.functions):
        return None
    listener = _Listener(outer, variables)
    try:
        with listener.nested(), suppress(Exit, Return, Break):
            listener.block(read_script(commands))
    except (_NeedsRunning, ShellSyntaxError):
        return None
    except UserError:  # it goes on for ever, and so does what it is a part of
        if isinstance(outer, _Listener):
            raise
        return None
    finally:
        outer.count = listener.count
    if listener.notes:  # something on the way was not followed
        return None
    variables.read |= listener.variables.read
    variables.defaults |= listener.variables.defaults
    variables.empty |= listener.variables.empty
    return _without_last_newlines(joined(listener.printed))


class _NeedsRunning(Exception):  # noqa: N818 - a signal
    """Only running it would tell what this prints."""


class _Listener(Follower):
    """What is printed on the way; the way is left where that cannot be told."""

    def __init__(self, outer: Follower, variables: Variables) -> None:
        super().__init__(variables.copy(), lambda words: False, outer.read_file)
        self.variables.output = partial(_output, self)
        self.variables.read, self.variables.empty = set(variables.read), set(variables.empty)
        self.variables.defaults = dict(variables.defaults)
        self.functions, self.count, self.depth = dict(outer.functions), outer.count, outer.depth
        self.printed: list[str | Unknown] = []
        self._characters = 0

    def command(self, command: Command) -> Answer:
        """The same, with what it prints."""
        if isinstance(command, Group) and command.redirected:
            raise _NeedsRunning
        if isinstance(command, Pipeline) and len(command.commands) > 1:
            raise _NeedsRunning
        return super().command(command)

    def called(self, name: str | None, command: Simple, words: list[Value]) -> Answer:
        if name in _PRINTING and name not in self.functions:
            printed = self._printed_by(name, command, words[1:])
            if not command.redirected:
                self._add(printed)
            return True
        if command.redirected or name == "printf":
            raise _NeedsRunning
        return super().called(name, command, words)

    def _add(self, printed: Value) -> None:
        self.printed.extend(printed)
        self._characters += sum(len(part) for part in printed if isinstance(part, str))
        if self._characters > _LONGEST:
            raise _NeedsRunning

    def _printed_by(self, name: str | None, command: Simple, words: list[Value]) -> Value:
        if name == "cat":
            if words or command.input is None:
                raise _NeedsRunning
            return given_text(command.input, self.variables)
        return _echoed(words) if name == "echo" else _formatted(words)

    def _apart(self, ways: Sequence[Callable[[], object]]) -> None:
        raise _NeedsRunning

    def _guarded(self, block: Block) -> Answer:
        return self.block(block)

    def _start(self, command: Simple, words: list[Value]) -> None:
        raise _NeedsRunning


def _echoed(words: list[Value]) -> Value:
    newline = ["\n"]
    while words and (option := known(words[0])) in ("-n", "-e", "-E", "-ne", "-en"):
        if "e" in option and any("\\" in part for word in words[1:] for part in word if isinstance(part, str)):
            raise _NeedsRunning
        newline = [] if "n" in option else newline
        words = words[1:]
    spaced = [part for number, word in enumerate(words) for part in ([" "] if number else []) + list(word)]
    return joined([*spaced, *newline])


def _formatted(words: list[Value]) -> Value:
    """`printf`, of the formats that change nothing."""
    form = known(words[0]) if words else None
    if form is None or form.startswith("-"):
        raise _NeedsRunning
    if len(words) == 2 and form in ("%s", "%s\\n"):
        return words[1] if form == "%s" else joined([*words[1], "\n"])
    body = form.removesuffix("\\n")
    if len(words) > 1 or "%" in body or "\\" in body:
        raise _NeedsRunning
    return (body, "\n") if body != form else (form,)


def _without_last_newlines(value: Value) -> Value:
    parts = list(value)
    if parts and isinstance(last := parts[-1], str):
        parts[-1] = last.rstrip("\n")
    return joined(parts)
