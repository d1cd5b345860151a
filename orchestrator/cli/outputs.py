"""Where a command writes what it makes: into a file, or for `-` on standard output, with nothing else there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.errors import UserError, file_refusal
from orchestrator.run_directory.rundir import write_atomically

PRINTED = Path("-")
"""The output that is standard output."""
JobOutput = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write; - is standard output.")
]


def check_printed(output: Path, as_json: bool) -> None:
    """Raises UserError where both the output and a JSON document would be printed."""
    if output == PRINTED and as_json:
        raise UserError(
            "-o - and --json would both print on standard output: leave out one of them", code="conflicting_outputs"
        )


def refuse_printed(param: typer.CallbackParam, value: Path | None) -> Path | None:
    """The callback of an output that has to be a file or a folder. Raises UserError for `-`."""
    if value == PRINTED:
        raise UserError(
            f"{param.opts[0]} - would be standard output, where this does not go: name where to write it",
            code="output_is_standard_output",
        )
    return value


@contextmanager
def told_aside(output: Path) -> Iterator[None]:
    """What is told to people goes to standard error where the output takes standard output."""
    if output != PRINTED:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


def write_output(output: Path, text: str) -> None:
    """Write or print it. Raises UserError where it cannot be written."""
    if output == PRINTED:
        typer.echo(text, nl=False)
        return
    with file_refusal(output, "written"):
        write_atomically(output, text)
