"""`orchestrator tune`: the fastest layout of a job that fits its GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.starts.start_warnings import tell_of_measurement
from orchestrator.api.targets import TargetOptions, load_named
from orchestrator.api.tuning import TuningTask, has_room, search_layouts, tuning_task
from orchestrator.cli.common import AsJson, JobFiles, Overrides, RunsDir, end_with, print_json, warn
from orchestrator.cli.jobs.planning_options import ClusterName, GpuName
from orchestrator.cli.jobs.tables.tune_tables import Report, trial_line
from orchestrator.cli.jobs.this_machine import check_alone, check_gpus
from orchestrator.cli.outputs import PRINTED, check_printed, told_aside, write_output
from orchestrator.errors import JobError, OrchestratorError, UserError
from orchestrator.imports import staying
from orchestrator.launch.start_checks import check_installed
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.spec.documents.field_names import overridden
from orchestrator.tuning.candidate_trials import CandidateTrials
from orchestrator.tuning.estimates import Candidate, front
from orchestrator.tuning.gpu_counts import enough
from orchestrator.tuning.layout_words import layout_words
from orchestrator.tuning.overlay import MARK, WRITTEN, overlay_text
from orchestrator.tuning.search import SearchResult
from orchestrator.tuning.trial import Trial, Trials, trial_job

Gpus = Annotated[int | None, typer.Option("--gpus", metavar="N", min=1, help="Tune for this many GPUs.")]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="KEY",
        help="Keep this setting of the job, e.g. tensor_model_parallel_size; may be repeated. Values of --set are "
        "kept too.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where to write the overlay; - is standard output. JOB.tuned.yaml by default.",
        show_default=False,
    ),
]


def command(
    jobs: JobFiles,
    gpus: Gpus = None,
    gpu: GpuName = None,
    cluster: ClusterName = None,
    overrides: Overrides = None,
    keep: Keep = None,
    top: Annotated[int, typer.Option("--top", metavar="K", min=1, help="How many layouts to show.")] = 10,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Run the best layouts on this machine for a few steps, and correct the other estimates."
        ),
    ] = False,
    best: Annotated[
        int, typer.Option("--best", metavar="K", min=1, help="With --measure: how many layouts to run.")
    ] = 3,
    steps: Annotated[
        int, typer.Option("--steps", min=3, help="With --measure: how many steps to measure of each.")
    ] = 10,
    output: Output = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest layout that fits: TP, PP, virtual stages, micro-batch, recomputation, sharding. The model, the
    data, the optimizer and the global batch do not change. The winner is written as an overlay.

    \b
    Example:
      orchestrator tune job.yaml
      orchestrator tune job.yaml --gpus 1024 --gpu H100 -o fast.yaml
      orchestrator tune job.yaml --keep tensor_model_parallel_size
      orchestrator tune job.yaml --measure --best 2
    """
    path = _overlay_path(jobs, output)
    check_printed(path, as_json)
    named = TargetOptions(cluster, gpu)
    task = tuning_task(load_named(jobs, overrides or [], named), named, overrides or [], keep or [], gpus)
    if measure:
        _check_measurable(task, runs_dir)
    with staying():
        found = search_layouts(task, measure=measure)
    measuring = CandidateTrials(found.fitting, task.estimates.memory_bytes)
    stopped, error = False, None
    if measure:
        trials = Trials(runs_dir_of(task.space.job, runs_dir), task.estimates.vocab_size, steps)
        trial = trial_job(task.space.job, trials.vocab_size, steps)
        tell_of_measurement(trial, trials.runs_dir, warn, layout_is_open=True)
        with told_aside(path):
            stopped, error = _measure(measuring, trials, best, found, quiet=as_json)
    report = _report(task, found, measuring, error, stopped=stopped)
    words = _run_words(jobs, Path("OVERLAY.yaml") if path == PRINTED else path, overrides or [])
    text = overlay_text(report.best.candidate.layout, report.job, [*report.told(), f"Use it: {words}"], gpu)
    written = True
    try:
        write_output(path, text)
    except UserError as refusal:
        written, error = False, error or refusal
    if as_json:
        failure = {"failure": str(error) if error else None}
        print_json({**report.to_json(top), "path": str(path) if written else None, "overlay": text, **failure})
    else:
        with told_aside(path):
            report.show(top)
            if written:
                typer.echo(f"{'' if path == PRINTED else f'wrote {path}; '}use it: {words}")
    end_with(error)
    if stopped:
        raise typer.Exit(130)


def _check_measurable(task: TuningTask, runs_dir: Path | None) -> None:
    check_installed(task.space.job)
    check_gpus(task.space.job, task.choice, "--measure", "add --gpus {}", "leave --measure out")
    check_alone(task.choice, runs_dir_of(task.space.job, runs_dir), "--measure")


def _report(
    task: TuningTask, found: SearchResult, measured: CandidateTrials, error: OrchestratorError | None, *, stopped: bool
) -> Report:
    """What is told. Raises the error that ended the measurements, or JobError, where nothing was found that runs."""
    report = Report(
        job=task.space.job,
        choice=task.choice,
        layers_from=task.layers_from,
        estimates=task.estimates,
        found=found,
        ranking=tuple(measured.ranking()),
        front=tuple(front(measured.ranking(found.leaner))),
        trials=measured.trials,
        enough=_enough_for_sure(task, found),
    )
    if error is not None and not any(each.is_measured for each in report.ranking):
        raise error
    if not report.ranking or (measured.trials and not stopped and not report.best.is_measured):
        raise JobError(f"none of the tried layouts could run:\n{report.tried()}", code="no_layout_ran")
    return report


def _enough_for_sure(task: TuningTask, found: SearchResult) -> int | None:
    """On how many GPUs a layout fits with room to spare, where none does on those that there are."""
    return None if has_room(task, found) else enough(task.space, task.estimates, task.per_node)


def _overlay_path(jobs: Sequence[Path], output: Path | None) -> Path:
    """Where the overlay goes. A file that the tuner did not write is left as it is."""
    path = output if output is not None else Path(f"{jobs[0].stem}.tuned.yaml")
    if path == PRINTED:
        return path
    if path.is_dir():
        raise UserError(
            f"{path} is a folder; -o needs the file to write, such as {path / 'tuned.yaml'}", code="output_is_folder"
        )
    if not path.parent.is_dir():
        raise UserError(f"{path} cannot be written: there is no folder {path.parent}", code="missing_output_folder")
    if path.exists() and not path.read_text(errors="replace").startswith(MARK):
        raise UserError(
            f"{path} exists and is not an overlay of the tuner: choose another file with -o", code="output_exists"
        )
    return path


def _run_words(jobs: Sequence[Path], path: Path, overrides: Sequence[str]) -> str:
    """The command that uses the overlay: what was overridden stays so, but for what the overlay says itself."""
    words = ["orchestrator", "run", *map(str, jobs), str(path)]
    others = [each for each in overrides if overridden(each) not in WRITTEN]
    return shlex.join([*words, *(part for each in others for part in ("--set", each))])


def _measure(
    measuring: CandidateTrials, trials: Trials, best: int, found: SearchResult, *, quiet: bool
) -> tuple[bool, OrchestratorError | None]:
    """Run the best few; returns whether a person stopped it, and what kept it from trying more. What was measured by
    then is kept.
    """

    def attempt(candidate: Candidate) -> Trial:
        known = trials.known(candidate.job)
        if not quiet:
            typer.echo(f"{'known' if known else 'running'}: {layout_words(candidate.layout)}")
        trial = known or trials.run(candidate.job)
        if not quiet:
            typer.echo(f"      {trial_line(trial, candidate)}")
        return trial

    try:
        measuring.run(attempt, best, found.own)
    except KeyboardInterrupt:
        typer.echo("stopped; what was measured is kept", err=True)
        return True, None
    except OrchestratorError as error:
        return False, error
    return False, None
