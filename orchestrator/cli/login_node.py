"""Commands that run on a cluster's login node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.main import get_command

from orchestrator.login.command import run_there
from orchestrator.login.routing import command_there


def run(app: typer.Typer, arguments: Sequence[str]) -> int | None:
    """Run a command line on the login node that it is for; its exit code, or None where it runs here."""
    name, values = parsed(app, arguments)
    command = command_there(name, arguments, values)
    return None if command is None else run_there(command)


def parsed(app: typer.Typer, arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The command of a command line, and what is said by parameter. Mistakes are for the command itself to tell."""
    command: Any = get_command(app)
    context = command.make_context("orchestrator", list(arguments), resilient_parsing=True)
    names: list[str] = []
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if not rest or command.get_command(context, rest[0]) is None:
            break
        name, command, rest = command.resolve_command(context, rest)
        names.append(name)
        context = command.make_context(name, rest, parent=context, resilient_parsing=True)
    return " ".join(names), dict(context.params)
