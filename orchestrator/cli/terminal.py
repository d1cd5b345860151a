"""The person at a terminal: what is said of a start is printed, and what is asked before it can be answered."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from orchestrator.api.starts.reporter import Answer, Kind, Reporter
from orchestrator.cli.common import warn


class Terminal(Reporter):
    """Under --json standard output is for the one object at the end, progress is not told, and nobody is asked."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def say(self, message: str, kind: Kind = "progress") -> None:
        if kind == "warning":
            warn(message)
        elif kind != "progress" or not self._as_json:
            typer.echo(message, err=kind == "error" or self._as_json)

    def choose(self, question: str, answers: Sequence[Answer]) -> Answer | None:
        """Raises typer.Exit where nothing is to be started."""
        if self._as_json or not can_ask():
            return None
        typer.echo(question, err=True)
        answer = _answer(answers)
        if answer == "nothing":
            typer.echo("nothing was started", err=True)
            raise typer.Exit(2)
        return answer


def _answer(answers: Sequence[Answer]) -> Answer:
    """The answer typed: a word or the start of one; "nothing" at the end of the input."""
    while True:
        try:
            typed = str(typer.prompt(f"choose {', '.join(answers[:-1])} or {answers[-1]}", default="nothing", err=True))
        except typer.Abort:
            return "nothing"
        meant = [answer for answer in answers if typed and answer.startswith(typed.strip().lower())]
        if len(meant) == 1:
            return meant[0]


def can_ask() -> bool:
    """Whether a terminal can answer this process: in the background, reading from it would stop the process."""
    try:
        return sys.stdin.isatty() and sys.stderr.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
