"""What is said while a run is started, and asked before it: a command prints it, a Python program may listen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["progress", "change", "warning", "error"]
Answer: TypeAlias = Literal["continue", "new", "nothing"]


class Reporter:
    """The base class says nothing, and has nobody to ask."""

    def say(self, message: str, kind: Kind = "progress") -> None:
        """`kind`: progress, a change that the run goes on with, a warning, or why it ended before it began."""

    def warn(self, message: str) -> None:
        """Say a warning."""
        self.say(message, "warning")

    def choose(self, question: str, answers: Sequence[Answer]) -> Answer | None:
        """What a person answers; None where nobody can be asked. The last answer is the one that starts nothing."""
        return None


class Listener(Reporter):
    """Hands what is said to a function, a message a call."""

    def __init__(self, listen: Callable[[str], object]) -> None:
        self._listen = listen

    def say(self, message: str, kind: Kind = "progress") -> None:
        self._listen(f"warning: {message}" if kind == "warning" else message)


def reporter_for(say: Callable[[str], object] | None) -> Reporter:
    """One that hands everything to a function, if there is one."""
    return Reporter() if say is None else Listener(say)
