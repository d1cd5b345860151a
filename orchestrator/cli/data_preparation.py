"""Data sets that a job lacks, made by a command before its training starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from orchestrator.api.starts.data_preparation import prepare_here
from orchestrator.spec.job import JobSpec


def prepare_first(jobs: Sequence[Path], overrides: Sequence[str], job: JobSpec, as_json: bool) -> None:
    """Make on this machine what a job lacks before there is a run of it: none is left behind where that fails. Raises
    typer.Exit then.
    """
    words = [*(f"--set={word}" for word in overrides), "--", *map(str, jobs)]
    if code := prepare(words, job, as_json):
        raise typer.Exit(code)


def prepare(what: Sequence[str], job: JobSpec, as_json: bool) -> int:
    """Make on this machine what a job lacks; returns the exit code. `what` are the arguments of `orchestrator data
    prepare` that name the job.
    """
    code, said = prepare_here(what, job, as_json=as_json)
    if code and said:
        typer.echo(said, nl=False)  # its error, in the form that was asked for
    return code
