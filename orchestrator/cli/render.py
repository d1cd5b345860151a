"""`orchestrator render`: the script that `run` would start."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, JobFiles, Overrides, print_json, warn
from orchestrator.cli.running import RunsDir
from orchestrator.launch.render import render
from orchestrator.launch.runs import find_same, next_run_dir, runs_dir_of
from orchestrator.spec.loading import load_job


def command(
    jobs: JobFiles,
    overrides: Overrides = None,
    new: Annotated[bool, typer.Option("--new", help="As `run --new` would start it.")] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the exact launch script that `run` would start, on standard output. Nothing is created.

    \b
    Example:
      orchestrator render job.yaml
      orchestrator render job.yaml --set launch.python=/opt/venv/bin/python > launch.sh
    """
    job = load_job(jobs, overrides or []).job
    folder = runs_dir_of(job, runs_dir)
    run = (None if new else find_same(job, folder, warn)) or next_run_dir(job, folder)
    script = render(job, run_dir=run.path, python=sys.executable)
    if as_json:
        print_json({"run_dir": str(run.path), "script": script})
    else:
        typer.echo(script, nl=False)
