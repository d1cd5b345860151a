"""A script followed from its first line to its last, without running any of its commands.

Variables are set, conditions on them are decided, functions are entered and loops gone round. Where a condition cannot
be told, both ways are followed: a variable that they leave with different values is not known afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from orchestrator.errors import UserError
from orchestrator.migration.shell.assignment import ON_VARIABLES, assign, declare, read_given
from orchestrator.migration.shell.conditions import (
    Answer,
    both,
    bracket,
    bracket_words,
    double_bracket,
    either,
    matches,
    negation,
)
from orchestrator.migration.shell.expansion import calculated, fields, given_text, pattern, text
from orchestrator.migration.shell.parser import DECLARING, read_script
from orchestrator.migration.shell.started_program import ShellText, StartedCommand, beside_script, shell_text
from orchestrator.migration.shell.syntax import (
    AndOr,
    ArithmeticCommand,
    Block,
    Case,
    Command,
    For,
    Function,
    Group,
    If,
    Pipeline,
    ShellSyntaxError,
    Simple,
    Test,
    While,
)
from orchestrator.migration.shell.values import Unknown, Value, joined, known, shown
from orchestrator.migration.shell.variables import Variables, agreed

_MOST_COMMANDS = 100_000
_MOST_TURNS = 1000
_MOST_NESTED = 20


class Exit(Exception):  # noqa: N818 - a signal
    """The script ends here."""


class Return(Exception):  # noqa: N818 - a signal
    """The function ends here."""


class Break(Exception):  # noqa: N818 - a signal
    """The loop ends here, and those around it up to a number of `loops`; `again`: only this turn of the last."""

    def __init__(self, again: bool, loops: int) -> None:
        self.again, self.loops = again, loops


class Follower:
    """A script on its way, and what it has started so far."""

    def __init__(
        self,
        variables: Variables,
        is_wanted: Callable[[Sequence[Value]], bool],
        read_file: Callable[[str], str | None],
    ) -> None:
        self.variables = variables
        self.commands: list[StartedCommand] = []
        self.notes: list[str] = []
        self._is_wanted = is_wanted
        self.read_file = read_file
        self.functions: dict[str, Block] = {}
        self.count = 0
        self.depth = 0
        self.loops = 0
        """Those around the current command, in its function or its text for a shell."""

    def block(self, block: Block) -> Answer:
        """Whether the last command succeeds; a block without any does."""
        answer: Answer = True
        for command in block:
            answer = self.command(command)
        return answer

    def command(self, command: Command) -> Answer:
        self.count += 1
        if self.count > _MOST_COMMANDS:
            raise UserError(f"the script goes on for more than {_MOST_COMMANDS:,} commands", code="script_too_long")
        return _HANDLERS[type(command)](self, command)

    def note(self, message: str) -> None:
        if message not in self.notes:
            self.notes.append(message)

    # Ways that are followed apart

    def _apart(self, ways: Sequence[Callable[[], object]]) -> None:
        """Follow several ways of which one is taken, and keep what they agree on. A way that ends the script before
        it starts anything is none.
        """
        before, ends = self.variables, []
        ended = False
        for way in ways:
            self.variables, started = before.copy(), len(self.commands)
            try:
                way()
            except Exit:
                ended = ended or len(self.commands) > started
                continue
            except (Return, Break):
                pass
            ends.append(self.variables)
        self.variables = agreed(ends) if ends else before
        if not ends and ended:
            raise Exit

    def _one_of(self, possible: Sequence[Block]) -> Answer:
        """Follow the block that is taken, or each of those that may be."""
        if len(possible) == 1:
            return self._guarded(possible[0])
        self._apart([partial(self.block, body) for body in possible])
        return None

    def _guarded(self, block: Block) -> Answer:
        """Follow a block that is taken; where it only ends the script, it is a complaint and is passed over."""
        before, started = self.variables.copy(), len(self.commands)
        try:
            return self.block(block)
        except Exit:
            if len(self.commands) > started:
                raise
            self.variables = before
            return None

    def if_(self, command: If) -> Answer:
        possible: list[Block] = []
        for condition, body in command.branches:
            answer = self.block(condition)
            if answer is not False:
                possible.append(body)
            if answer is True:
                break
        else:
            possible.append(command.otherwise)
        return self._one_of(possible)

    def case(self, command: Case) -> Answer:
        word = known(text(command.word, self.variables))
        possible: list[Block] = []
        for patterns, body in command.items:
            answers = [matches(word, pattern(each, self.variables)) for each in patterns]
            answer: Answer = False
            for each in answers:
                answer = either(answer, each)
            if answer is not False:
                possible.append(body)
            if answer is True:
                break
        else:
            possible.append(())
        return self._one_of(possible)

    def and_or(self, command: AndOr) -> Answer:
        answer = self.command(command.first)
        for operator, following in command.rest:
            wanted = operator == "&&"
            if answer is (not wanted):
                continue
            combine = both if wanted else either
            if answer is wanted:
                answer = self._guarded((following,))
                continue
            self._apart([partial(self.command, following), lambda: None])
            answer = combine(answer, None)
        return answer

    def pipeline(self, command: Pipeline) -> Answer:
        answer: Answer = None
        for each in command.commands:
            answer = self.command(each)
        return negation(answer) if command.negated else answer

    def group(self, command: Group) -> Answer:
        if not command.subshell:
            return self.block(command.body)
        with self._variables_apart(), suppress(Exit, Return, Break):
            return self.block(command.body)
        return None

    @contextmanager
    def _variables_apart(self) -> Iterator[None]:
        """With variables of its own."""
        before = self.variables
        self.variables = before.copy()
        try:
            yield
        finally:
            self.variables = before

    # Loops

    def while_(self, command: While) -> Answer:
        for _ in range(_MOST_TURNS):
            answer = self.block(command.condition)
            answer = negation(answer) if command.negated else answer
            if answer is False:
                return True
            if answer is None:
                self.note(f"line {command.line}: the number of iterations of this loop is not known")
                self._apart([partial(self._body, command.body), lambda: None])
                return None
            if not self._turn(command.body):
                return True
        self.note(f"line {command.line}: this loop was left after {_MOST_TURNS} turns")
        return None

    def for_(self, command: For) -> Answer:
        if command.steps is not None:
            calculated(command.steps, self.variables, "((…))", f"the loop in line {command.line}")
            words = []
        elif command.words is None:
            words = list(self.variables.arguments)
        else:
            words = [field for word in command.words for field in fields(word, self.variables)]
        if command.steps is not None or len(words) > _MOST_TURNS or any(known(word) is None for word in words):
            self.note(f"line {command.line}: the number of iterations of this loop is not known")
            unknown = Unknown(f"${command.name}", f"the variable of the loop in line {command.line}", command.name)
            if command.name:
                self.variables.set(command.name, (unknown,))
            self._apart([partial(self._body, command.body), lambda: None])
            return None
        for word in words:
            self.variables.set(command.name, word)
            if not self._turn(command.body):
                break
        return True

    def _turn(self, body: Block) -> bool:
        """Whether the loop goes on."""
        try:
            self._body(body)
        except Break as end:
            if end.loops > 1:
                raise Break(end.again, end.loops - 1) from None
            return end.again
        return True

    def _body(self, body: Block) -> Answer:
        """What stands in a loop."""
        self.loops += 1
        try:
            return self.block(body)
        finally:
            self.loops -= 1

    # Single commands

    def test(self, command: Test) -> Answer:
        return double_bracket(command, self.variables)

    def arithmetic(self, command: ArithmeticCommand) -> Answer:
        by = f"an expression in line {command.line}"
        value = known(calculated(command.expression, self.variables, "((…))", by))
        return None if value is None else value != "0"

    def function(self, command: Function) -> Answer:
        self.functions[command.name] = command.body
        return True

    def simple(self, command: Simple) -> Answer:
        first = known(text(command.words[0], self.variables)) if command.words else None
        if first in ("[", "test"):
            words = bracket_words(command.words[1:], self.variables)
            return bracket(words[:-1] if first == "[" and words else words)
        words = [field for word in command.words for field in fields(word, self.variables)]
        name = known(words[0]) if words else None
        if name in DECLARING:
            declare(name or "", command.assignments, words[1:], self.variables)
            return True
        if not words:
            for assignment in command.assignments:
                assign(assignment, self.variables)
            return True
        return self.called(name, command, words)

    def called(self, name: str | None, command: Simple, words: list[Value]) -> Answer:
        """A command by its words, of which there is at least one."""
        if name == "read" and command.input is not None and not command.assignments:
            return read_given(words, given_text(command.input, self.variables), command.line, self.variables)
        if name in ON_VARIABLES:
            return ON_VARIABLES[name](words, command.line, self.variables)
        if name in _BUILTINS:
            return _BUILTINS[name](self, command, words)
        if name in self.functions:
            self.variables.hidden.append({})
            around, self.loops = self.loops, 0
            try:
                return self._enter(self.functions[name], words[1:])
            finally:
                self.loops = around
                self.variables.leave_function()
        self._start(command, words)
        return None

    @contextmanager
    def nested(self) -> Iterator[None]:
        """In a function, a sourced file or a text of the script's own, which `return` leaves."""
        self.depth += 1
        if self.depth > _MOST_NESTED:
            raise UserError(
                f"functions and texts of the script are nested more than {_MOST_NESTED} deep",
                code="nested_too_deep",
            )
        try:
            yield
        finally:
            self.depth -= 1

    def _enter(self, body: Block, arguments: list[Value]) -> Answer:
        """A function, or a file that is sourced with arguments."""
        with self.nested(), self._given(arguments):
            try:
                return self.block(body)
            except Return:
                return None

    @contextmanager
    def _given(self, arguments: list[Value]) -> Iterator[None]:
        """With arguments of its own."""
        outer = (self.variables.arguments, self.variables.shifted)
        self.variables.arguments, self.variables.shifted = arguments, 0
        try:
            yield
        finally:
            self.variables.arguments, self.variables.shifted = outer

    def _start(self, command: Simple, words: list[Value]) -> None:
        """A program: kept where it is wanted; the text that is given to a shell is followed."""
        environment = {name: self.variables.plain_value(name) for name in sorted(self.variables.exported)}
        with self._variables_apart():
            for assignment in command.assignments:
                assign(assignment, self.variables)
                environment[assignment.name] = self.variables.plain_value(assignment.name)
            if (found := shell_text(words)) is not None:
                self._follow_text(command.line, found, environment)
                return
        if self._is_wanted(words):
            read = frozenset(self.variables.read)
            self.commands.append(StartedCommand(command.line, tuple(words), environment, read))

    def _follow_text(self, line: int, found: ShellText, environment: dict[str, Value]) -> None:
        kept, around, self.loops = len(self.commands), self.loops, 0
        with self._given(found.arguments), suppress(Exit, Return):
            self._text(line, found.text)
        self.loops = around
        self.commands[kept:] = [
            StartedCommand(each.line, (*found.before, *each.words), environment | each.environment, each.read)
            for each in self.commands[kept:]
        ]

    def _text(self, line: int, script: Value) -> Answer:
        """Follow a text of the script's own: what is not known in it stands as a variable."""
        plain = ""
        for number, part in enumerate(script):
            if isinstance(part, Unknown):
                name = f"__unknown_{self.depth}_{number}"
                self.variables.set(name, (part,))
                plain += f"${{{name}}}"
            else:
                plain += part
        with self.nested():
            try:
                return self.block(read_script(plain, line))
            except ShellSyntaxError as error:
                raise ShellSyntaxError(line, f"in a text that a shell is given: {error.message}") from error

    # Commands of the shell itself

    def eval(self, command: Simple, words: list[Value]) -> Answer:
        spaced = [part for word in words[1:] for part in (*word, " ")]
        return self._text(command.line, joined(spaced))

    def source(self, command: Simple, words: list[Value]) -> Answer:
        path = known(words[1]) or beside_script(words[1]) if len(words) > 1 else None
        script = self.read_file(path) if path is not None else None
        if script is None:
            where = shown(words[1]) if len(words) > 1 else "a file"
            self.note(f"line {command.line}: {where} is not read: give the variables that it sets with --set-var")
            return None
        block = read_script(script)
        if words[2:]:
            return self._enter(block, words[2:])
        with self.nested(), suppress(Return):
            return self.block(block)
        return None

    def exit(self, command: Simple, words: list[Value]) -> Answer:
        raise Exit

    def return_(self, command: Simple, words: list[Value]) -> Answer:
        raise Return

    def leave_loop(self, command: Simple, words: list[Value]) -> Answer:
        if not self.loops:
            return True  # bash says that there is none, and goes on
        given = known(words[1]) if len(words) > 1 else "1"
        loops = int(given) if given is not None and given.isdecimal() else 1
        raise Break(known(words[0]) == "continue", min(loops, self.loops))

    def exec(self, command: Simple, words: list[Value]) -> Answer:
        if len(words) > 1:
            self._start(command, words[1:])
            raise Exit
        return True


_HANDLERS: dict[type, Callable[..., Answer]] = {
    Simple: Follower.simple,
    Test: Follower.test,
    ArithmeticCommand: Follower.arithmetic,
    If: Follower.if_,
    While: Follower.while_,
    For: Follower.for_,
    Case: Follower.case,
    Function: Follower.function,
    Group: Follower.group,
    Pipeline: Follower.pipeline,
    AndOr: Follower.and_or,
}
_BUILTINS: dict[str | None, Callable[..., Answer]] = {
    **dict.fromkeys((".", "source"), Follower.source),
    **dict.fromkeys(("break", "continue"), Follower.leave_loop),
    "eval": Follower.eval,
    "exit": Follower.exit,
    "return": Follower.return_,
    "exec": Follower.exec,
}
