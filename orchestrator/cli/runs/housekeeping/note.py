"""`orchestrator note`: a note on a run or a sweep."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.api.housekeeping.labelling import note
from orchestrator.api.housekeeping.targets import find_target
from orchestrator.cli.common import AsJson, RunsDir, print_json
from orchestrator.cli.runs.housekeeping.common import TargetName, described, record_of
from orchestrator.run_directory.labels import read_labels
from orchestrator.run_directory.rundir import default_runs_dir


def command(
    run_name: TargetName,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help='The new note; "" removes the note.', show_default=False)
    ] = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a note on a run, also while it trains, or on a sweep; it replaces the earlier note. Without TEXT, show the
    note. MLflow gets it as part of the run's description.

    \b
    Example:
      orchestrator note gpt-small "the learning rate of the paper, other data"
      orchestrator note gpt-small ""
    """
    target = find_target(run_name, runs_dir or default_runs_dir())
    labels = read_labels(target.path) if text is None else note(target, text)
    if as_json:
        print_json(record_of(target, labels))
    else:
        typer.echo(f"{described(target)}: {labels.note or 'no note'}")
