"""`orchestrator rename`: another name for a run."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.api.housekeeping.labelling import rename
from orchestrator.api.housekeeping.targets import find_target
from orchestrator.cli.common import AsJson, RunName, RunsDir, print_json
from orchestrator.cli.runs.housekeeping.common import record_of
from orchestrator.errors import UserError
from orchestrator.launch.run_names import shown_label
from orchestrator.run_directory.rundir import default_runs_dir
from orchestrator.sweeps.ledger import SweepDir


def command(
    run_name: RunName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name; its job's name undoes a renaming.")],
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Give a run another name, also while it trains. The run's folder, id and job stay the same, so resume, paths and
    checkpoint.pretrained still work. Every command also finds the run by its earlier names.

    \b
    Example:
      orchestrator rename 3f9a gpt-small-best
    """
    run = find_target(run_name, runs_dir or default_runs_dir())
    if isinstance(run, SweepDir):
        raise UserError(
            f"sweep {run.name} keeps its name: `sweep run` finds by it what was started, and each cell its sweep.\n"
            f"      `orchestrator note` and `tag` say more of a sweep; another sweep.name begins another one",
            code="sweep_keeps_name",
        )
    before = shown_label(run)
    labels = rename(run, name)
    if as_json:
        print_json(record_of(run, labels))
    else:
        typer.echo(f"run {before} is now {shown_label(run)}; its folder is still {run.path}")
