"""Words of a shell script: quotes, escapes, `$…` and backquotes, read without their meaning."""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import cache
from itertools import groupby

from orchestrator.migration.shell.syntax import (
    Arithmetic,
    Literal,
    Opaque,
    Parameter,
    Part,
    ShellSyntaxError,
    Word,
)

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
_UNBRACED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_OPERATORS = (":-", ":=", ":+", ":?", "##", "%%", "//", "/#", "/%", "^^", ",,", *"-=+?#%/^,:@")
_DEFAULTS = (":-", "-", ":=", "=", ":+", "+", ":?", "?")
_METACHARACTERS = frozenset(" \t\n;&|<>()")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPES |= {"e": "\x1b", "E": "\x1b", "?": "?"}
_HERE = re.compile(r"""(?<!<)<<(-?)[ \t]*(?:'([^'\n]+)'|"([^"\n]+)"|\\?([\w.+-]+))""")
_COMMENT = re.compile(r"(?<=[\s;&|(])(?<!\\.)#", re.DOTALL)
_NUMBERED = re.compile(r"x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})")


class WordReader:
    """A place in a text, and how words are read from it."""

    double_quotes = True
    """Whether they quote."""

    def __init__(self, text: str, line: int = 1) -> None:
        self.text = text
        self.position = 0
        self._first_line = line
        self._line_ends = [position for position, character in enumerate(text) if character == "\n"]
        self._absent: dict[str, int] = {}

    @property
    def line(self) -> int:
        """Line of the place, from 1."""
        return self._line_at(self.position)

    def _line_at(self, position: int) -> int:
        return self._first_line + bisect_left(self._line_ends, position)

    def fail(self, message: str, position: int | None = None) -> ShellSyntaxError:
        """The error of a text that cannot be read from a position on (here by default)."""
        place = self.position if position is None else position
        return ShellSyntaxError(self._line_at(place), message)

    def peek(self, length: int = 1) -> str:
        """The next characters, fewer at the end."""
        return self.text[self.position : self.position + length]

    def take(self, expected: str) -> bool:
        """Go past a text if it comes next."""
        if self.text.startswith(expected, self.position):
            self.position += len(expected)
            return True
        return False

    def skip_blanks(self) -> None:
        """Go past blanks, continued lines, and a comment up to its end of line."""
        while True:
            if self.peek() in (" ", "\t"):
                self.position += 1
            elif self.peek(2) == "\\\n":
                self.position += 2
            else:
                break
        if self.peek() == "#":
            end = self.text.find("\n", self.position)
            self.position = len(self.text) if end < 0 else end

    def word(self) -> Word:
        """The word that starts here; empty where none does."""
        return self.parts(_METACHARACTERS, quoted=False)

    def parts(self, stop: frozenset[str], *, quoted: bool) -> Word:
        """What stands before the first of the `stop` characters that has its meaning, or the end."""
        found: list[Part] = []
        while (character := self.peek()) and character not in stop:
            start = self.position
            if character == "\\":
                self._escape(found, stop, quoted)
            elif character == "'" and not quoted:
                found.append(Literal(self._up_to("'", "a quote that is not closed"), True))
            elif character == '"' and self.double_quotes:
                found.extend(self._double_quoted())
            elif character == "$":
                found.extend(self._dollar(quoted))
            elif character == "`":
                shown = self._backquoted()
                found.append(Opaque(shown, "the output of a command", quoted))
            elif plain := _plainly(stop).match(self.text, self.position):
                self.position = plain.end()
                found.append(Literal(plain[0], quoted))
            else:
                self.position += 1
                found.append(Literal(character, quoted))
            assert self.position > start
        return _merged(found)

    def _escape(self, found: list[Part], stop: frozenset[str], quoted: bool) -> None:
        self.position += 1
        character = self.peek()
        if not character:
            found.append(Literal("\\", quoted))
            return
        self.position += 1
        if character == "\n":
            return
        special = '$`"\\' if self.double_quotes else "$`\\"
        if quoted and character not in special and character not in stop:
            found.append(Literal("\\" + character, True))
        else:
            found.append(Literal(character, True))

    def _double_quoted(self) -> list[Part]:
        start = self.position
        self.position += 1
        inner = self.parts(frozenset('"'), quoted=True)
        if not self.take('"'):
            raise self.fail("a quote that is not closed", start)
        return list(inner) or [Literal("", True)]

    def _up_to(self, end: str, what: str) -> str:
        found = self.text.find(end, self.position + 1)
        if found < 0:
            raise self.fail(what)
        text = self.text[self.position + 1 : found]
        self.position = found + len(end)
        return text

    def _backquoted(self) -> str:
        start = self.position
        self.position += 1
        while (character := self.peek()) != "`":
            if not character:
                raise self.fail("a backquote that is not closed", start)
            self.position += 2 if character == "\\" else 1
        self.position += 1
        return self.text[start : self.position]

    def _dollar(self, quoted: bool) -> list[Part]:
        start = self.position
        following = self.text[start + 1 : start + 2]
        if following == "(":
            return [self._substitution(quoted)]
        if following == "{":
            return [self._braced(quoted)]
        if following == "[":
            return [self._old_arithmetic(quoted)]
        if following == "'" and not quoted:
            self.position += 1
            return [Literal(self._ansi_c(), True)]
        if following == '"' and not quoted:
            self.position += 1
            return self._double_quoted()
        match = _UNBRACED.match(self.text, start + 1)
        if match is None:
            self.position += 1
            return [Literal("$", quoted)]
        self.position = match.end()
        return [Parameter(match.group(), quoted, self.text[start : self.position])]

    def _ansi_c(self) -> str:
        start = self.position
        self.position += 1
        text = ""
        while (character := self.peek()) != "'":
            if not character:
                raise self.fail("a quote that is not closed", start)
            self.position += 1
            if character != "\\":
                text += character
            elif numbered := _NUMBERED.match(self.text, self.position):
                self.position = numbered.end()
                digits = numbered.group(1) or numbered.group(2) or numbered.group(3)
                code = int(digits, 16) if digits else int(numbered.group(4), 8)
                text += chr(code) if code <= 0x10FFFF else ""
            else:
                text += _ESCAPES.get(self.peek(), "\\" + self.peek())
                self.position += 1
        self.position += 1
        return text

    def _substitution(self, quoted: bool) -> Part:
        """`$((…))` where it is closed by `))`, else `$(…)`."""
        start = self.position
        self.position += 1
        self._past_parentheses()
        shown = self.text[start : self.position]
        if shown.startswith("$((") and shown.endswith("))"):
            inner = WordReader(shown[3:-2], self.line).parts(frozenset(), quoted=True)
            return Arithmetic(inner, quoted, shown)
        return Opaque(shown, "the output of a command", quoted)

    def _old_arithmetic(self, quoted: bool) -> Part:
        """`$[…]`, which is `$((…))`."""
        start = self.position
        self.position += 2
        inner = self.parts(frozenset("]"), quoted=True)
        if not self.take("]"):
            raise self.fail("$[ without ]", start)
        return Arithmetic(inner, quoted, self.text[start : self.position])

    def _past_parentheses(self) -> None:
        """From `(` to behind the `)` that closes it."""
        start, depth = self.position, 0
        ends: list[str] = []
        while True:
            character = self.peek()
            if not character:
                raise self.fail("a parenthesis that is not closed", start)
            if character == "\\":
                self.position += 2
            elif here := _HERE.match(self.text, self.position):
                tabs = r"\t*" if here.group(1) else ""
                ends.append(rf"\n{tabs}{re.escape(here.group(2) or here.group(3) or here.group(4))}(?=\n)")
                self.position = here.end()
            elif character == "\n":
                self._past_here_documents(ends)
                ends = []
            elif character == "'":
                self._up_to("'", "a quote that is not closed")
            elif character == '"':
                self._double_quoted()
            elif character == "`":
                self._backquoted()
            elif self.peek(2) == "${":
                self._braced(False)
            elif _COMMENT.match(self.text, self.position):
                self.skip_blanks()
            else:
                depth += {"(": 1, ")": -1}.get(character, 0)
                self.position += 1
                if depth == 0:
                    return

    def _past_here_documents(self, ends: list[str]) -> None:
        """From an end of line to behind that of the last of the documents below it, where quotes mean nothing. What has
        no end is none: in an expression `<<` shifts.
        """
        for end in ends:
            if self.position >= self._absent.get(end, len(self.text)):
                continue
            if document := re.compile(end).search(self.text, self.position):
                self.position = document.end()
            else:
                self._absent[end] = self.position  # and behind it: not to be looked for from each line
        self.position += 1

    def process_substitution(self) -> Word:
        """`<(…)` or `>(…)`."""
        start = self.position
        self.position += 1
        self._past_parentheses()
        return (Opaque(self.text[start : self.position], "the output of a command", True),)

    def expression(self) -> Word:
        """`((EXPRESSION))` from its first parenthesis on."""
        start = self.position
        self._past_parentheses()
        text = self.text[start : self.position]
        if not text.endswith("))"):
            raise self.fail("(( without ))", start)
        return WordReader(text[2:-2], self.line).parts(frozenset(), quoted=True)

    def _braced(self, quoted: bool) -> Part:
        start = self.position
        self.position += 2
        prefix = ""
        if self.peek() in ("#", "!") and self.text[self.position + 1 : self.position + 2] not in ("}", ""):
            prefix = self.peek()
            self.position += 1
        match = _PARAMETER.match(self.text, self.position)
        if match is None:
            raise self.fail("${…} without a name", start)
        self.position = match.end()
        index = None
        if self.take("["):
            index = self.parts(frozenset("]"), quoted=True)
            if not self.take("]"):
                raise self.fail("[ without ]", start)
        operator = next((sign for sign in _OPERATORS if self.take(sign)), "")
        keeps_quotes = quoted and operator in _DEFAULTS
        argument = self.parts(frozenset("}"), quoted=keeps_quotes)
        if not self.take("}"):
            raise self.fail("${ without }", start)
        return Parameter(match.group(), quoted, self.text[start : self.position], index, prefix or operator, argument)


class _HereReader(WordReader):
    double_quotes = False


def here_document(text: str, line: int) -> Word:
    """The text of a here-document with its variables. Raises ShellSyntaxError."""
    return _HereReader(text, line).parts(frozenset(), quoted=True)


def _merged(parts: list[Part]) -> Word:
    merged: list[Part] = []
    for quoted, alike in groupby(parts, key=lambda part: part.quoted if isinstance(part, Literal) else None):
        if quoted is None:
            merged.extend(alike)
        else:
            merged.append(Literal("".join(part.text for part in alike if isinstance(part, Literal)), quoted))
    return tuple(merged)


@cache
def _plainly(stop: frozenset[str]) -> re.Pattern[str]:
    """Characters that mean themselves, quoted or not."""
    return re.compile("[^" + re.escape("".join(sorted(stop)) + "\\'\"$`") + "]+")


def plain(word: Word) -> str | None:
    """The text of a word of unquoted literals only: what can be a reserved word."""
    if len(word) == 1 and isinstance(word[0], Literal) and not word[0].quoted:
        return word[0].text
    return None
