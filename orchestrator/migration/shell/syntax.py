"""What a shell script is made of, so far as it decides what a command is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from orchestrator.errors import UserError


class ShellSyntaxError(UserError):
    """A script that cannot be read. `line` counts from 1 in the text that was given."""

    code = "shell_syntax"

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line
        self.message = message


@dataclass(frozen=True)
class Literal:
    """Text that stands for itself; quoted text is never split."""

    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Parameter:
    """`$NAME`, `${NAME[INDEX]OP ARGUMENT}`."""

    name: str
    quoted: bool
    shown: str
    index: Word | None = None
    """`@`, `*` or an arithmetic expression, of `${NAME[INDEX]}`."""
    operator: str = ""
    argument: Word = ()


@dataclass(frozen=True)
class Arithmetic:
    """`$((EXPRESSION))`."""

    expression: Word
    quoted: bool
    shown: str


@dataclass(frozen=True)
class Opaque:
    """What only running it would tell: a command substitution, a process substitution."""

    shown: str
    why: str
    quoted: bool


Part: TypeAlias = Literal | Parameter | Arithmetic | Opaque
Word: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True)
class Assignment:
    """`NAME=VALUE`, `NAME+=VALUE`, `NAME[INDEX]=VALUE`, `NAME=(WORDS)`."""

    name: str
    value: Word
    words: tuple[Word, ...] | None = None
    """Of an array; None for a plain value."""
    append: bool = False
    index: Word | None = None


@dataclass
class HereDocument:
    """What stands in the lines below a command; they are read after it."""

    quoted: bool
    """Whether it stands for itself, without variables."""
    text: str = ""
    line: int = 0
    """Of its first line."""


@dataclass(frozen=True)
class Simple:
    """A command and what stands before it."""

    line: int
    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    input: Word | HereDocument | None = None
    """What it reads, where that stands in the script."""
    redirected: bool = False
    """Whether what it prints goes elsewhere."""


@dataclass(frozen=True)
class Test:
    """`[[ … ]]`: words, and the operators that stand for themselves."""

    line: int
    tokens: tuple[Word | str, ...]


@dataclass(frozen=True)
class ArithmeticCommand:
    """`((EXPRESSION))`."""

    line: int
    expression: Word


@dataclass(frozen=True)
class If:
    """Conditions with what each leads to, and the rest."""

    line: int
    branches: tuple[tuple[Block, Block], ...]
    otherwise: Block


@dataclass(frozen=True)
class While:
    """`while` and, negated, `until`."""

    line: int
    condition: Block
    negated: bool
    body: Block


@dataclass(frozen=True)
class For:
    """`for NAME in WORDS`; None are the script's arguments."""

    line: int
    name: str
    words: tuple[Word, ...] | None
    body: Block
    steps: Word | None = None
    """Of `for ((STEPS))`."""


@dataclass(frozen=True)
class Case:
    """Patterns with what each leads to."""

    line: int
    word: Word
    items: tuple[tuple[tuple[Word, ...], Block], ...]


@dataclass(frozen=True)
class Function:
    """A function's definition."""

    name: str
    body: Block


@dataclass(frozen=True)
class Group:
    """`{ … }`, or `( … )` whose variables are its own."""

    body: Block
    subshell: bool
    redirected: bool = False
    """Whether what it prints goes elsewhere."""


@dataclass(frozen=True)
class Pipeline:
    """Commands joined by `|`; one alone may be negated."""

    commands: tuple[Command, ...]
    negated: bool = False


@dataclass(frozen=True)
class AndOr:
    """Commands joined by `&&` and `||`."""

    line: int
    first: Command
    rest: tuple[tuple[str, Command], ...] = field(default=())


Command: TypeAlias = Simple | Test | ArithmeticCommand | If | While | For | Case | Function | Group | Pipeline | AndOr
Block: TypeAlias = tuple[Command, ...]
