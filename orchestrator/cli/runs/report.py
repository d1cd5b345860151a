"""`orchestrator report`: runs in one file that a person sends to colleagues."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, RunsDir
from orchestrator.errors import MissingDependency, RunNotFound, UserError, file_refusal
from orchestrator.launch.runs import find_any_run
from orchestrator.run_directory.rundir import RunDir, cell_of, default_runs_dir
from orchestrator.safe_path import module_command
from orchestrator.sweeps.ledger import find_sweep, sweep_dir

_HTML, _MARKDOWN = (".html", ".htm"), (".md", ".markdown")
_PRINTED = "-"
_MOST_NOTE_BYTES = 64 << 10
_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")


def command(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run ids (or their beginnings), names of jobs or sweeps, or paths."),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="A file that ends in .html or .md; - prints Markdown. By default report-NAME.html here.",
            show_default=False,
        ),
    ] = None,
    title: Annotated[
        str, typer.Option("--title", help="Heading of the report; the names of the runs by default.")
    ] = "",
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Your own text, at the top.")] = None,
    note_file: Annotated[
        Path | None, typer.Option("--note-file", metavar="FILE", help="Your own text, from a text or Markdown file.")
    ] = None,
    light: Annotated[bool, typer.Option("--light", help="HTML with curves as plain lines, 5 MB smaller.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a report on runs, as one HTML file or as Markdown: results, curves, differences. Secrets in specs and logs
    are left out: values of launch.env, notifications, credentials in addresses.

    \b
    Example:
      orchestrator report gpt-small
      orchestrator report 1a2b 3c4d -o rates.html --title "Two rates" --note "The second is better."
      orchestrator report my-sweep -o - | less
    """
    folder = runs_dir or default_runs_dir()
    runs = list({run.path: run for name in names for run in _meant(name, folder)}.values())
    place = _place(output, runs, names, force=force)
    if light and not place.endswith(_HTML):
        raise UserError("--light is for HTML: in Markdown curves are text", code="option_without_effect")
    if place.endswith(_HTML) and not light and importlib.util.find_spec("plotly") is None:
        raise MissingDependency(
            "interactive curves need plotly, which this Python lacks: "
            "pip install 'megatron-orchestrator[dashboard]', or add --light"
        )
    arguments = module_command(
        "orchestrator.dashboard.report",
        f"--output={place}",
        f"--title={title}",
        f"--note={_words(note, note_file)}",
        *(["--light"] if light else []),
        *(["--json"] if as_json else []),
        "--",
        *(str(run.path) for run in runs),
    )
    sys.stdout.flush()
    os.execv(sys.executable, arguments)


def _meant(name: str, folder: Path) -> list[RunDir]:
    """The run of that name; of a sweep the runs of its cells, where no other job has its name. Raises UserError."""
    try:
        run = find_any_run(name, folder)
    except RunNotFound:
        if not sweep_dir(name, folder).is_planned:
            raise
    else:
        if not sweep_dir(name, folder).is_planned or run.name != name or cell_of(run) is None:
            return [run]
    sweep = find_sweep(name, folder)
    runs = [run for entry in sweep.planned().cells if (run := sweep.run(entry)).resolved_generations()]
    if not runs:
        raise UserError(f"no cell of the sweep {name} has a run yet", code="no_runs")
    return runs


def _place(output: str | None, runs: Sequence[RunDir], names: Sequence[str], *, force: bool) -> str:
    """Where the report goes. Raises UserError where it cannot go there."""
    if output == _PRINTED:
        return output
    if output is None:
        name = f"{runs[0].name}-{runs[0].run_id}" if len(runs) == 1 else "-".join(Path(name).name for name in names[:3])
        output = f"report-{_UNSAFE.sub('-', name)[:80]}.html"
    path = Path(output)
    if not path.name.endswith((*_HTML, *_MARKDOWN)):
        raise UserError(f"{output}: a report is .html or .md; name one with such an ending", code="output_not_a_report")
    if not path.parent.is_dir():
        raise UserError(f"the folder {path.parent} for {path.name} does not exist", code="missing_output_folder")
    if path.is_dir() or (path.exists() and not force):
        raise UserError(
            f"{output} already exists: choose another name" + ("" if force else ", or add --force"),
            code="output_exists",
        )
    return output


def _words(note: str | None, file: Path | None) -> str:
    """The person's own words. Raises UserError where they cannot be read."""
    if note is not None and file is not None:
        raise UserError("--note and --note-file have the same purpose: use one of them", code="conflicting_options")
    if file is None:
        return note or ""
    with file_refusal(file):
        content = file.read_bytes()
    if len(content) > _MOST_NOTE_BYTES:
        raise UserError(
            f"{file} has {len(content):,} bytes: a note has at most {_MOST_NOTE_BYTES:,}", code="note_too_long"
        )
    return content.decode("utf-8", "replace").replace("\0", "")
