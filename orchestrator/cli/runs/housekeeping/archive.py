"""`orchestrator archive`: hide runs and sweeps from lists."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.api.housekeeping.labelling import archive
from orchestrator.api.housekeeping.targets import find_target
from orchestrator.cli.common import AsJson, RunsDir, print_json
from orchestrator.cli.runs.housekeeping.common import TargetNames, described, record_of
from orchestrator.run_directory.rundir import default_runs_dir


def command(
    names: TargetNames,
    undo: Annotated[bool, typer.Option("--undo", help="Show them again.")] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Hide runs, or sweeps with their cells, from `list` and the dashboard. Nothing is removed, and every command still
    finds them.

    \b
    Example:
      orchestrator archive gpt-small 3f9a
      orchestrator archive lr-sweep --undo
    """
    folder = runs_dir or default_runs_dir()
    targets = [find_target(name, folder) for name in names]
    records = []
    for target in targets:
        records.append(record_of(target, archive(target, undo=undo)))
        if not as_json:
            typer.echo(f"{described(target)} is {'shown again' if undo else 'archived'}")
    if as_json:
        print_json(records)
