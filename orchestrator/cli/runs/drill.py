"""`orchestrator drill`: prove for a job that kill and resume give the losses of an uninterrupted run."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.api.planned_job import plan_loaded
from orchestrator.api.starts.data_preparation import check_sources
from orchestrator.api.starts.start_warnings import HERE, check_start, verdict_on_all
from orchestrator.cli.common import AllowWarnings, AsJson, JobFiles, Overrides, RunsDir, aligned, print_json, warn
from orchestrator.cli.data_preparation import prepare_first
from orchestrator.errors import UserError
from orchestrator.launch.local.drill import Drill, drill, shortened
from orchestrator.launch.start_checks import check_installed
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.spec.loading import load_job


def command(
    jobs: JobFiles,
    overrides: Overrides = None,
    iterations: Annotated[int, typer.Option("--iters", min=2, help="Steps of the shortened job.")] = 8,
    kill_at: Annotated[int, typer.Option("--kill-at", min=2, help="Step after which every rank is killed.")] = 5,
    allow_warnings: AllowWarnings = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Prove that a kill and a resume change nothing: train a shortened job twice, once undisturbed and once with
    kill -9 of every rank and a resume, and compare the loss of every step bit by bit.

    \b
    Example:
      orchestrator drill job.yaml
      orchestrator drill job.yaml --iters 20 --kill-at 12
    """
    if kill_at >= iterations:
        raise UserError(
            f"--kill-at {kill_at} must be before the end, --iters {iterations}", code="job_too_short_to_kill"
        )
    loaded = load_job(jobs, overrides or [])
    check_installed(loaded.job)
    check_sources(plan_loaded(loaded))
    folder = runs_dir_of(loaded.job, runs_dir)
    job = shortened(loaded.job, iterations, kill_at, folder)
    length = BatchSchedule.of(job).train_iters
    if kill_at >= length:
        raise UserError(
            f"--kill-at {kill_at} must be before the end: the job has only {length} steps", code="job_too_short_to_kill"
        )
    twice = [(job, ())] * 2  # both trainings are there until their losses are compared
    check_start(verdict_on_all(twice, None, folder), HERE, allowed=allow_warnings, warn=warn)
    prepare_first(jobs, overrides or [], loaded.job, as_json)
    tell = (lambda line: None) if as_json else typer.echo
    try:
        result = drill(job, kill_at=kill_at, folder=folder, tell=tell)
    except KeyboardInterrupt:
        typer.echo("stopped; nothing was proved, and what it had trained is removed", err=True)
        raise typer.Exit(130) from None
    if as_json:
        print_json(result.to_json())
    else:
        typer.echo(table(result))
        typer.echo(verdict(result), err=not result.equal)
    raise typer.Exit(0 if result.equal else 1)


def table(result: Drill) -> str:
    """Loss of every step, with and without the kill."""
    rows = [["STEP", "UNINTERRUPTED", "KILLED AND RESUMED", "EQUAL", ""]]
    for step in result.steps:
        note = f"killed after step {result.killed_at}" if step.iteration == result.killed_at else ""
        note = f"resumed from step {result.resumed_from}" if step.iteration == result.resumed_from + 1 else note
        cells = [str(step.iteration), _loss(step.reference), _loss(step.resumed), "yes" if step.equal else "NO", note]
        rows.append(cells)
    return aligned(rows)


def verdict(result: Drill) -> str:
    """What it means."""
    if result.equal:
        return f"passed: {len(result.steps)} steps bitwise equal after kill -9 and resume"
    different = [str(step.iteration) for step in result.steps if not step.equal]
    return f"failed: the losses of steps {', '.join(different)} differ; both runs are kept in {result.folder}"


def _loss(value: float | None) -> str:
    return "missing" if value is None else repr(value)
