"""`orchestrator prune`: remove for good what was deleted."""

from __future__ import annotations

import shlex
import time
from typing import Annotated, Any

import typer

from orchestrator.api.housekeeping.emptying import prune, to_prune
from orchestrator.cli.common import AsJson, RunsDir, aligned, folder_to_read, print_json
from orchestrator.cli.runs.housekeeping.common import Yes, ask
from orchestrator.errors import UserError
from orchestrator.fields.formatting import shorten
from orchestrator.quantities import ACCEPTED_TIMES, age, disk_size, seconds_in
from orchestrator.run_directory.trash import Trashed


def command(
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Only what was deleted longer ago: 12h, 30d, 2 weeks.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is in the trash, and its size; remove nothing.")
    ] = False,
    yes: Yes = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Empty the trash of a runs folder, which frees the disk. What `delete` moved there cannot be put back afterwards.

    \b
    Example:
      orchestrator prune --dry-run
      orchestrator prune --older-than 30d --yes
    """
    folder = folder_to_read(runs_dir)
    entries = to_prune(folder, _seconds(older_than))
    total = sum(entry.bytes for entry in entries)
    if entries and not as_json:
        now = time.time()
        rows = [[entry.name, disk_size(entry.bytes), f"{age(now - entry.deleted)} ago"] for entry in entries]
        typer.echo(aligned([["IN THE TRASH", "SIZE", "DELETED"], *rows]))
    if dry_run:
        if as_json:
            print_json({"removed": [], "would_remove": [_record(entry) for entry in entries], "bytes": total})
        else:
            typer.echo(f"{disk_size(total)} would be freed; nothing was removed" if entries else "the trash is empty")
        return
    if entries and not ask(f"remove {disk_size(total)} for good?", yes=yes):
        typer.echo("nothing was removed", err=True)
        raise typer.Exit(2)
    waiting = prune(entries, folder)
    if as_json:
        print_json({"removed": [_record(entry) for entry in entries], "would_remove": [], "bytes": total})
        return
    typer.echo(f"{disk_size(total)} freed" if entries else "the trash is empty")
    if waiting:
        again = f"orchestrator sync --all --runs-dir {shlex.quote(str(folder))}"
        typer.echo(f"      MLflow is still to be told of {len(waiting)}: {again}")


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = seconds_in(text)
    if seconds is None:
        raise UserError(f"--older-than {shorten(text)}: expects a time {ACCEPTED_TIMES}", code="malformed_duration")
    return seconds


def _record(entry: Trashed) -> dict[str, Any]:
    return {
        "name": entry.name,
        "kind": entry.kind,
        "place": entry.place,
        "path": str(entry.path),
        "deleted": entry.deleted,
        "bytes": entry.bytes,
    }
