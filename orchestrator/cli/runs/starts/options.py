"""What the commands share that start a run: options, and what they print where there is nothing to start."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.api.starts.continuation import NoStart, all_changes, no_start_sentence
from orchestrator.cli.common import print_json

New = Annotated[bool, typer.Option("--new", help="Start another run, even if one exists.")]
AllowChanges = Annotated[
    bool,
    typer.Option(
        "--allow-changes", help="Continue the run of this name, even if the changes alter the course of its training."
    ),
]


def tell_no_start(no_start: NoStart, as_json: bool) -> None:
    """Say why nothing is started, and how the job differs from a run that has completed."""
    found, status, why = no_start
    if as_json:
        print_json(status.to_json())
    else:
        typer.echo(no_start_sentence(no_start))
    if why == "completed" and found.changes:
        told = f"      This job differs from it, but the differences no longer have an effect:\n{all_changes([found])}"
        typer.echo(told, err=as_json)
