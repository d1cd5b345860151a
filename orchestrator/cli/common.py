"""What several commands share: common options, JSON and tables as output, warnings."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.errors import OrchestratorError, UserError
from orchestrator.files.stored_files import printable
from orchestrator.run_directory.rundir import RUNS_DIR_VARIABLE, default_runs_dir

JobFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="JOB.yaml...", help="Job spec; of several files, later ones override earlier ones.", show_default=False
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override one value, e.g. optimizer.lr=1e-4 or lr=1e-4; may be repeated."
    ),
]
RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Run id or its beginning, a job's name (the run started last), or a path."),
]
RunsDir = Annotated[
    Path | None,
    typer.Option(
        "--runs-dir",
        metavar="DIR",
        help=f"Folder of the runs; by default ${RUNS_DIR_VARIABLE} or `runs` in the current directory.",
        show_default=False,
    ),
]
AllowWarnings = Annotated[
    bool,
    typer.Option("--allow-warnings", help="Start even if a warning says that the work would be lost."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def folder_to_read(runs_dir: Path | None) -> Path:
    """The folder of the runs. Raises UserError where one was named that is none; the default may be still to come."""
    folder = runs_dir or default_runs_dir()
    if not folder.is_dir() and (runs_dir is not None or folder.exists()):
        raise UserError(
            f"{folder} {'is not a folder' if folder.exists() else 'is not there'}: it should hold runs",
            code="not_a_folder",
        )
    return folder


def print_json(value: Any) -> None:
    """Print a value as indented JSON on standard output."""
    typer.echo(json.dumps(value, indent=2))


def warn(message: str) -> None:
    """Print a warning on standard error."""
    typer.echo(f"warning: {message}", err=True)


def end_with(error: OrchestratorError | None) -> None:
    """End a command whose results are printed, and of which something failed beside them: said on standard error, so
    that what is printed stays one document. Nothing where nothing failed.
    """
    if error is not None:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code)


def stop_printing() -> None:
    """Send what is still printed nowhere: who read standard output has gone, or its disk is full. Python's own flush
    at exit cannot complain then.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def aligned(rows: list[list[str]]) -> str:
    """Rows of a table as text, columns padded. Folder names may contain anything, so each cell is put on one line."""
    rows = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
