"""`orchestrator bench`: how fast a job runs here, and where the time of a step goes."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.planned_job import plan_loaded, vocabulary_size_of
from orchestrator.api.starts.data_preparation import check_sources
from orchestrator.api.starts.start_warnings import tell_of_measurement
from orchestrator.bench.measurement import MeasurementRequest, bench_job, measure, new_run
from orchestrator.bench.report import Report, report_of
from orchestrator.bench.text import (
    after_the_parts,
    communication_table,
    headline,
    memory_table,
    missing,
    page,
    parts_table,
)
from orchestrator.cli.common import AsJson, JobFiles, Overrides, RunsDir, aligned, end_with, print_json, warn
from orchestrator.cli.data_preparation import prepare_first
from orchestrator.cli.jobs.this_machine import check_alone, check_gpus
from orchestrator.cli.outputs import refuse_printed
from orchestrator.errors import JobError, OrchestratorError, UserError, file_refusal
from orchestrator.launch.local.launcher import Watcher
from orchestrator.launch.start_checks import check_installed
from orchestrator.launch.terminal_watcher import watcher_for
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.planning.hardware import device_of
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job

_FEWER = "`orchestrator tune --gpus {}` finds a layout for it"


OwnData = Annotated[bool, typer.Option("--data", help="Train on the job's own data instead of random tokens.")]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Also write a profile of rank 0, in Chrome's trace format.",
        callback=refuse_printed,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="PAGE.md", help="Also write the results as a Markdown page.", callback=refuse_printed
    ),
]


def command(
    jobs: JobFiles,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option("--steps", min=3, help="Timed steps.")] = 20,
    warm_up: Annotated[int, typer.Option("--warm-up", min=1, help="Untimed steps before them.")] = 5,
    own_data: OwnData = False,
    trace: Trace = None,
    output: Output = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Train a job here for a few steps, without saving anything, and report how fast it is: step time, tokens/s, MFU,
    and one step by part, next to the plan and a lower bound for each part.

    \b
    Example:
      orchestrator bench job.yaml
      orchestrator bench job.yaml --steps 50 --trace step.json -o docs/benchmarks/today.md
      orchestrator bench job.yaml --set batch.micro_batch_size=2 --data
    """
    for path in (trace, output):
        _check_writable(path)
    loaded = load_job(jobs, overrides or [])
    choice = device_of(loaded.job, None)
    check_installed(loaded.job)
    check_gpus(loaded.job, choice, "bench", _FEWER)
    folder = runs_dir_of(loaded.job, runs_dir)
    check_alone(choice, folder, "bench")
    request = MeasurementRequest(warm_up, steps, trace is not None)
    if own_data:
        check_sources(plan_loaded(loaded))
        prepare_first(jobs, overrides or [], loaded.job, as_json)
    job = bench_job(loaded.job, request, None if own_data else vocabulary_size_of(loaded))
    tell_of_measurement(job, folder, warn)
    run = new_run(job, request, folder)
    if not as_json:
        typer.echo(f"measuring {steps} steps after {warm_up}, in {run.path}")
    watcher = Watcher() if as_json else watcher_for(run, request.all_steps, sys.stdout)
    try:
        report = report_of(measure(run, job, request, watcher=watcher))
    except KeyboardInterrupt:
        typer.echo("stopped; nothing was measured", err=True)
        raise typer.Exit(130) from None
    written, refusal = _write_all(run, report, trace, output, _typed(jobs, overrides, steps, warm_up, own_data))
    error = _failure(report) or refusal
    if as_json:
        print_json({**report.to_json(), "failure": str(error) if error else None})
    else:
        _show(report, job)
        for path in written:
            typer.echo(f"wrote {path}")
    if report.measured.is_stopped:
        typer.echo(f"stopped; {missing(report)} was not measured", err=True)
        raise typer.Exit(130)
    end_with(error)


def _failure(report: Report) -> OrchestratorError | None:
    """The error after the timed steps that left the measurement incomplete."""
    measured = report.measured
    if measured.failure is None:
        return None
    return JobError(
        f"{missing(report)} was not measured: {measured.failure}\n      its run: {measured.run.path}",
        code="measurement_failed",
    )


def _show(report: Report, job: JobSpec) -> None:
    typer.echo()
    for line in headline(report):
        typer.echo(line)
    if parts := parts_table(report):
        typer.echo()
        typer.echo(aligned(parts))
    for line in after_the_parts(report):
        typer.echo(line)
    for table in (communication_table(report), memory_table(report)):
        if table:
            typer.echo()
            typer.echo(aligned(table))


def _check_writable(path: Path | None) -> None:
    """Before minutes of measuring."""
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"{path} is a folder; name the file to write", code="output_is_folder")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path} cannot be written: there is no folder {path.parent}", code="missing_output_folder")


def _write_all(
    run: RunDir, report: Report, trace: Path | None, output: Path | None, typed: str
) -> tuple[list[Path], UserError | None]:
    """The files that were asked for, as far as they could be written, and what hindered the others. `typed`: the
    command.
    """
    wanted: list[tuple[Path, Path | str]] = []
    if trace is not None and run.bench_trace.exists():
        wanted.append((trace, run.bench_trace))
    if output is not None:
        wanted.append((output, page(report, run.resolved().read_text(), typed)))
    written, refusals = [], []
    for path, content in wanted:
        try:
            _write(path, content)
            written.append(path)
        except UserError as refusal:
            refusals.append(refusal)
    return written, next(iter(refusals), None)


def _write(path: Path, content: Path | str) -> None:
    with file_refusal(path, "written"):
        if isinstance(content, Path):
            shutil.move(content, path)
        else:
            write_atomically(path, content)


def _typed(jobs: list[Path], overrides: list[str] | None, steps: int, warm_up: int, own_data: bool) -> str:
    """The command, as it could be typed again."""
    words = ["orchestrator", "bench", *map(str, jobs), *(f"--set={word}" for word in overrides or [])]
    words += [f"--steps={steps}", f"--warm-up={warm_up}", *(["--data"] if own_data else [])]
    return shlex.join(words)
