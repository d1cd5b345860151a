"""From the text of a shell script to its commands."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.migration.shell.syntax import (
    AndOr,
    ArithmeticCommand,
    Assignment,
    Block,
    Case,
    Command,
    For,
    Function,
    Group,
    HereDocument,
    If,
    Literal,
    Opaque,
    Pipeline,
    Simple,
    Test,
    While,
    Word,
)
from orchestrator.migration.shell.words import NAME, WordReader, plain

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[([^\]\n]*)\])?(\+?)=")
_REDIRECTION = re.compile(r"(?:\d+|\{[A-Za-z_]\w*\})?(<<<|<<-?|<>|<&|>&|>>|>\||<(?!\()|>(?!\())|&>>?")
_PLACEHOLDER = re.compile(r"<[A-Za-z][^<>\n]*>[^\s;&|()]*")
_PLACEHOLDER_IN_WORD = re.compile(r"<[A-Za-z][^\s<>;&|()]*>")
_FUNCTION = re.compile(r"function[ \t]+([\w:.-]+)(?:[ \t]*\([ \t]*\))?|([\w:.-]+)[ \t]*\([ \t]*\)")
DECLARING = frozenset(("export", "declare", "local", "readonly", "typeset"))
_ENDS = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}"))
_TEST_OPERATORS = ("&&", "||", "(", ")", "<", ">")
_MAX_DEPTH = 50


@dataclass(frozen=True)
class _Redirection:
    of_output: bool
    """Whether what is printed goes elsewhere."""
    input: Word | HereDocument | None
    """What is read, where that stands in the script."""


def read_script(text: str, line: int = 1) -> Block:
    """The commands of a script. Raises ShellSyntaxError with its line."""
    reader = _CommandReader(text.replace("\r\n", "\n"), line)
    block = reader.block(frozenset())
    if reader.peek():
        raise reader.fail(f"{reader.peek()!r} where a command should start")
    return block


class _CommandReader(WordReader):
    def __init__(self, text: str, line: int) -> None:
        super().__init__(text, line)
        self._here_documents: list[tuple[str, bool, HereDocument]] = []
        self._depth = 0

    def block(self, ends: frozenset[str]) -> Block:
        """Commands up to one of the reserved words, which is left; to a `)` or the end of the text without any."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.fail(f"commands nested more than {_MAX_DEPTH} deep")
        commands: list[Command] = []
        while True:
            self._skip_separators()
            if not self.peek() or self.peek() == ")" or self.peek(2) in (";;", ";&"):
                break
            word = self._reserved()
            if word in ends:
                break
            if word in _ENDS:
                raise self.fail(f"{word!r} without its beginning")
            commands.append(self._and_or())
        self._depth -= 1
        return tuple(commands)

    def word(self) -> Word:
        """The word that starts here, with `<NAME>` in it for what is still to be written."""
        word = super().word()
        while placeholder := _PLACEHOLDER_IN_WORD.match(self.text, self.position):
            self.position = placeholder.end()
            word += (Opaque(placeholder.group(), "a placeholder", True), *super().word())
        return word

    def _skip_separators(self) -> None:
        while True:
            self.skip_blanks()
            if self.peek() == "\n":
                self._end_line()
            elif self.peek() in (";", "&") and self.peek(2) not in (";;", ";&", "&&"):
                self.position += 1
            else:
                return

    def _end_line(self) -> None:
        self.position += 1
        for delimiter, stripped, document in self._here_documents:
            document.line, lines = self.line, []
            while self.position < len(self.text):
                end = self.text.find("\n", self.position)
                end = len(self.text) if end < 0 else end
                line = self.text[self.position : end]
                self.position = min(end + 1, len(self.text))
                line = line.lstrip("\t") if stripped else line
                if line == delimiter:
                    break
                lines.append(f"{line}\n")
            document.text = "".join(lines)
        self._here_documents = []

    def _skip_lines(self) -> None:
        self.skip_blanks()
        while self.peek() == "\n":
            self._end_line()
            self.skip_blanks()

    def _reserved(self) -> str | None:
        """The unquoted word that comes next, which is left."""
        start = self.position
        word = plain(self.word())
        self.position = start
        return word

    def _expect(self, *words: str) -> str:
        self._skip_separators()
        found = self._reserved()
        if found not in words:
            raise self.fail(f"{' or '.join(words)} is missing")
        assert found is not None
        self.position += len(found)
        return found

    def _and_or(self) -> Command:
        line, first = self.line, self._pipeline()
        rest: list[tuple[str, Command]] = []
        while True:
            self.skip_blanks()
            operator = self.peek(2)
            if operator not in ("&&", "||"):
                break
            self.position += 2
            self._skip_lines()
            rest.append((operator, self._pipeline()))
        return AndOr(line, first, tuple(rest)) if rest else first

    def _pipeline(self) -> Command:
        negated = False
        while self._reserved() in ("!", "time"):
            negated ^= self.take("!")
            if self.take("time"):
                self.skip_blanks()
                self.take("-p ")
            self.skip_blanks()
        commands = [self._command()]
        while True:
            self.skip_blanks()
            if self.peek() != "|" or self.peek(2) == "||":
                break
            self.position += 1
            self.take("&")
            self._skip_lines()
            commands.append(self._command())
        return Pipeline(tuple(commands), negated) if negated or len(commands) > 1 else commands[0]

    def _command(self) -> Command:
        line = self.line
        if function := _FUNCTION.match(self.text, self.position):
            self.position = function.end()
            self._skip_lines()
            body = self._command()
            return Function(function.group(1) or function.group(2), (body,))
        command: Command
        if self.peek(2) == "((":
            command = ArithmeticCommand(line, self.expression())
        elif self.peek() == "(":
            self.position += 1
            body_of = self.block(frozenset())
            if not self.take(")"):
                raise self.fail("( without )")
            command = Group(body_of, True)
        else:
            word = self._reserved()
            readers = {
                "if": self._if,
                "while": self._while,
                "until": self._while,
                "for": self._for,
                "select": self._for,
            }
            readers |= {"case": self._case, "{": self._braces, "[[": self._test}
            if word not in readers:
                return self._simple()
            self.position += len(word)
            command = readers[word](line)
        return Group((command,), False, redirected=True) if self._skip_redirections() else command

    def _skip_redirections(self) -> bool:
        """Whether what is printed goes elsewhere."""
        elsewhere = False
        self.skip_blanks()
        while redirection := self._redirection():
            elsewhere = elsewhere or redirection.of_output
            self.skip_blanks()
        return elsewhere

    def _redirection(self) -> _Redirection | None:
        match = _REDIRECTION.match(self.text, self.position)
        if match is None or _PLACEHOLDER_IN_WORD.match(self.text, self.position):
            return None
        operator = match.group(1) or match.group()  # &> has no descriptor
        descriptor = match.group().removesuffix(operator)
        self.position = match.end()
        self.skip_blanks()
        start = self.position
        target = self._argument()
        if self.position == start:
            raise self.fail(f"{operator} without what comes behind it")
        given: Word | HereDocument | None = target if operator == "<<<" else None
        if operator in ("<<", "<<-"):
            written = self.text[start : self.position]
            delimiter = "".join(part.text for part in target if isinstance(part, Literal))
            given = HereDocument(quoted=any(sign in written for sign in "'\"\\"))
            self._here_documents.append((delimiter or written, operator == "<<-", given))
        to_itself = plain(target) in ("/dev/stdout", "/dev/fd/1") or (operator == ">&" and plain(target) == "1")
        of_output = operator[0] != "<" and descriptor in ("", "1") and not to_itself
        return _Redirection(of_output, given if descriptor in ("", "0") else None)

    def _argument(self) -> Word:
        """A word or a process substitution; empty where neither starts here."""
        return self.process_substitution() if self.peek(2) in ("<(", ">(") else self.word()

    def _simple(self) -> Command:
        line = self.line
        assignments: list[Assignment] = []
        words: list[Word] = []
        given: Word | HereDocument | None = None
        elsewhere = False
        started = False
        while True:
            self.skip_blanks()
            if redirection := self._redirection():
                started = True
                given, elsewhere = redirection.input or given, elsewhere or redirection.of_output
                continue
            declares = bool(words) and plain(words[0]) in DECLARING
            if (not words or declares) and (assignment := self._assignment()):
                assignments.append(assignment)
                continue
            start = self.position
            word = self._argument()
            if self.position == start:
                break
            words.append(word)
        if not words and not assignments and not started:
            character = self.peek()
            raise self.fail(f"{character!r} where a command should start" if character else "the script ends too early")
        return Simple(line, tuple(assignments), tuple(words), given, elsewhere)

    def _assignment(self) -> Assignment | None:
        match = _ASSIGNMENT.match(self.text, self.position)
        if match is None:
            return None
        self.position = match.end()
        name, index, plus = match.groups()
        at = WordReader(index, self.line).parts(frozenset(), quoted=True) if index is not None else None
        if self.peek() == "(" and index is None:
            return Assignment(name, (), self._array(), bool(plus))
        if placeholder := _PLACEHOLDER.match(self.text, self.position):
            self.position = placeholder.end()
            return Assignment(name, (Opaque(placeholder.group(), "a placeholder", True),))
        return Assignment(name, self.word(), None, bool(plus), at)

    def _array(self) -> tuple[Word, ...]:
        start = self.position
        self.position += 1
        words: list[Word] = []
        while True:
            self._skip_lines()
            if self.take(")"):
                return tuple(words)
            before = self.position
            words.append(self._argument())
            if self.position == before:
                raise self.fail("an array that is not closed", start)

    def _if(self, line: int) -> Command:
        branches: list[tuple[Block, Block]] = []
        while True:
            condition = self.block(frozenset(("then",)))
            self._expect("then")
            branches.append((condition, self.block(frozenset(("elif", "else", "fi")))))
            if (end := self._expect("elif", "else", "fi")) != "elif":
                break
        otherwise: Block = ()
        if end == "else":
            otherwise = self.block(frozenset(("fi",)))
            self._expect("fi")
        return If(line, tuple(branches), otherwise)

    def _loop_body(self) -> Block:
        self._expect("do")
        body = self.block(frozenset(("done",)))
        self._expect("done")
        return body

    def _while(self, line: int) -> Command:
        negated = self.text.startswith("until", self.position - 5)
        condition = self.block(frozenset(("do",)))
        return While(line, condition, negated, self._loop_body())

    def _for(self, line: int) -> Command:
        self.skip_blanks()
        if self.peek(2) == "((":
            steps = self.expression()
            return For(line, "", (), self._loop_body(), steps)
        name = NAME.match(self.text, self.position)
        if name is None:
            raise self.fail("for without a variable's name")
        self.position = name.end()
        self._skip_lines()
        words: list[Word] | None = None
        if self._reserved() == "in":
            self.position += 2
            words = []
            self.skip_blanks()
            while self.peek() not in ("", "\n", ";"):
                start = self.position
                words.append(self.word())
                if self.position == start:
                    raise self.fail(f"{self.peek()!r} in the words of a for")
                self.skip_blanks()
        return For(line, name.group(), None if words is None else tuple(words), self._loop_body())

    def _case(self, line: int) -> Command:
        self.skip_blanks()
        word = self.word()
        self._expect("in")
        items: list[tuple[tuple[Word, ...], Block]] = []
        while True:
            self._skip_separators()
            if self._reserved() == "esac":
                self._expect("esac")
                return Case(line, word, tuple(items))
            self.take("(")
            patterns: list[Word] = []
            while True:
                self.skip_blanks()
                patterns.append(self.word())
                self.skip_blanks()
                if not self.take("|"):
                    break
            if not self.take(")"):
                raise self.fail("a pattern of case without )")
            items.append((tuple(patterns), self.block(frozenset(("esac",)))))
            if self.peek(3) == ";;&" or self.peek(2) == ";&":
                raise self.fail("a pattern of case that leads on to the next")
            self.take(";;")

    def _braces(self, line: int) -> Command:
        body = self.block(frozenset(("}",)))
        self._expect("}")
        return Group(body, False)

    def _test(self, line: int) -> Command:
        tokens: list[Word | str] = []
        while True:
            self._skip_lines()
            if self.take("]]"):
                return Test(line, tuple(tokens))
            operator = next((sign for sign in _TEST_OPERATORS if self.take(sign)), None)
            if operator is not None:
                tokens.append(operator)
            elif tokens and _is_plain(tokens[-1], "=~"):
                tokens.append(self.parts(frozenset(" \t\n"), quoted=False))
            else:
                start = self.position
                tokens.append(self.word())
                if self.position == start:
                    raise self.fail("[[ without ]]")


def _is_plain(token: Word | str, text: str) -> bool:
    return not isinstance(token, str) and plain(token) == text
