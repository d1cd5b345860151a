"""`orchestrator tune`: the fastest layout of a job that fits its GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.planned_job import profile_named, vocabulary_size_of
from orchestrator.api.targets import GPU_OPTION, TargetOptions, load_named
from orchestrator.cli.common import AsJson, JobFiles, Overrides, RunsDir, end_with, print_json
from orchestrator.cli.jobs.planning_options import ClusterName, GpuName
from orchestrator.cli.jobs.preflight import tell_of_measurement
from orchestrator.cli.jobs.tables.tune_tables import Report, layout_words, trial_line
from orchestrator.cli.jobs.this_machine import check_alone, check_gpus
from orchestrator.cli.outputs import PRINTED, check_printed, told_aside, write_output
from orchestrator.cli.run_start import check_installed
from orchestrator.errors import JobError, OrchestratorError, SpecError, UserError
from orchestrator.imports import staying
from orchestrator.kernel_selection.layers import layers_there
from orchestrator.planning.checks.limits import partition_of, what_is_refused
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.planning.estimates import machine_of
from orchestrator.planning.hardware import DeviceChoice, device_of
from orchestrator.planning.memory import capacity
from orchestrator.planning.memory.fit import TIGHT
from orchestrator.quantities import memory_size
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.documents.field_names import overridden
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob
from orchestrator.tuning.candidate_trials import CandidateTrials
from orchestrator.tuning.estimates import Candidate, PlanEstimates, front
from orchestrator.tuning.gpu_counts import enough, spread
from orchestrator.tuning.layout import KEYS, fields_kept, on_machines
from orchestrator.tuning.overlay import MARK, WRITTEN, overlay_text
from orchestrator.tuning.search import NEARLY, WHOLE, SearchResult, search
from orchestrator.tuning.space import Space
from orchestrator.tuning.trial import Trial, Trials, trial_job

Gpus = Annotated[int | None, typer.Option("--gpus", metavar="N", min=1, help="Tune for that many GPUs.")]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="KEY",
        help="Leave this setting as the job has it, e.g. tensor_model_parallel_size; may be repeated. What --set gives "
        "is kept as well.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where the overlay goes; - is standard output. JOB.tuned.yaml by default.",
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
        bool, typer.Option("--measure", help="Run the best on this machine for some steps, and correct the rest by it.")
    ] = False,
    best: Annotated[int, typer.Option("--best", metavar="K", min=1, help="With --measure: how many to run.")] = 3,
    steps: Annotated[int, typer.Option("--steps", min=3, help="With --measure: how many steps to count of each.")] = 10,
    output: Output = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest layout that fits: TP, PP, virtual stages, micro-batch, recomputation, sharding. The model, the
    data, the optimizer and the global batch stay as they are. Writes the winner as an overlay.

    \b
    Example:
      orchestrator tune job.yaml
      orchestrator tune job.yaml --gpus 1024 --gpu H100 -o fast.yaml
      orchestrator tune job.yaml --keep tensor_model_parallel_size
      orchestrator tune job.yaml --measure --best 2
    """
    path = _overlay_path(jobs, output)
    check_printed(path, as_json)
    task = _task(jobs, overrides or [], keep or [], gpus, gpu, cluster)
    if measure:
        _check_measurable(task, runs_dir)
    with staying():
        found = _search(task, measure)
    measuring = CandidateTrials(found.fitting, task.estimates.memory_bytes)
    stopped, error = False, None
    if measure:
        trials = Trials(runs_dir_of(task.space.job, runs_dir), task.estimates.vocab_size, steps)
        tell_of_measurement(trial_job(task.space.job, trials.vocab_size, steps), trials.runs_dir, layout_is_open=True)
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


@dataclass(frozen=True)
class _Task:
    """What is tuned, and for what."""

    space: Space
    estimates: PlanEstimates
    choice: DeviceChoice
    layers_from: str
    """Why these layers are planned for."""
    per_node: int
    """GPUs of a whole machine."""


def _task(
    files: Sequence[Path],
    overrides: Sequence[str],
    keep: Sequence[str],
    gpus: int | None,
    gpu: str | None,
    cluster: str | None,
) -> _Task:
    named = TargetOptions(cluster, gpu)
    loaded = load_named(files, overrides, named)
    profile = profile_named(loaded, named)
    choice = device_of(loaded.job, profile)
    if gpu is not None:
        choice = choice._replace(how=GPU_OPTION)
    per_node = _gpus_per_node(loaded.job, choice, profile)
    job = _on_gpus(loaded, gpus, per_node, profile)
    typed = {overridden(word) for word in overrides}
    kept = fields_kept(keep) | {KEYS[key] for key in typed & KEYS.keys()}
    layers, why = layers_there(job, machine_of(choice.device))
    estimates = PlanEstimates(device=choice.device, layers=layers, vocab_size=vocabulary_size_of(loaded))
    return _Task(Space(job, frozenset(kept), choice.device.linked_machines), estimates, choice, why, per_node)


def _on_gpus(loaded: LoadedJob, gpus: int | None, per_node: int, profile: ClusterSpec | None) -> JobSpec:
    job = loaded.job
    nodes, each = spread(gpus, per_node) if gpus is not None else (job.launch.nodes, job.processes_per_node)
    job = on_machines(job, nodes, each)
    refused = what_is_refused(job, profile) if profile is not None else []
    if refused:
        raise SpecError(problems=[loaded.places.placed(problem) for problem in refused])
    return job


def _gpus_per_node(job: JobSpec, choice: DeviceChoice, profile: ClusterSpec | None) -> int:
    """What a whole machine has: the profile knows best. The CPU is one machine however many processes it runs."""
    if profile is not None:
        partition = profile.partitions.get(partition_of(job, profile) or "")
        if partition is not None and partition.gpus_per_node:
            return partition.gpus_per_node
    return 1 << 30 if choice.device.is_cpu else choice.device.gpus_per_node


def _search(task: _Task, measure: bool) -> SearchResult:
    """What fits; what is tight counts where it is going to be measured, or where nothing else fits."""
    found = search(task.space, task.estimates, WHOLE if measure else TIGHT)
    if not measure and not _has_room(task, found):
        found = search(task.space, task.estimates, NEARLY)
    if not found.fitting:
        raise UserError(_nothing_fits(task, found))
    return found


def _has_room(task: _Task, found: SearchResult) -> bool:
    """Whether a layout fits with room to spare: the job's own may be there without."""
    return any(capacity(each.memory, task.choice.device) != "tight" for each in found.fitting)


def _check_measurable(task: _Task, runs_dir: Path | None) -> None:
    check_installed(task.space.job)
    check_gpus(task.space.job, task.choice, "--measure", "add --gpus {}", "leave --measure out")
    check_alone(task.choice, runs_dir_of(task.space.job, runs_dir), "--measure")


def _report(
    task: _Task, found: SearchResult, measured: CandidateTrials, error: OrchestratorError | None, *, stopped: bool
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
        raise JobError(f"none of the layouts that were tried could be run:\n{report.tried()}")
    return report


def _enough_for_sure(task: _Task, found: SearchResult) -> int | None:
    """On how many GPUs a layout fits with room to spare, where none does on those that there are."""
    return None if _has_room(task, found) else enough(task.space, task.estimates, task.per_node)


def _overlay_path(jobs: Sequence[Path], output: Path | None) -> Path:
    """Where the overlay goes. A file that the tuner did not write is left as it is."""
    path = output if output is not None else Path(f"{jobs[0].stem}.tuned.yaml")
    if path == PRINTED:
        return path
    if path.is_dir():
        raise UserError(f"{path} is a folder; -o takes the file to write, such as {path / 'tuned.yaml'}")
    if not path.parent.is_dir():
        raise UserError(f"{path} cannot be written: there is no folder {path.parent}")
    if path.exists() and not path.read_text(errors="replace").startswith(MARK):
        raise UserError(f"{path} exists, is no overlay of the tuner, and is left as it is: choose another with -o")
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


def _nothing_fits(task: _Task, found: SearchResult) -> str:
    """Why there is no layout, what came nearest, and how many GPUs would do."""
    job, limit = task.space.job, task.estimates.memory_bytes
    where = f"{job.world_size} {task.choice.device.name}{'s' if job.world_size > 1 else ''}"
    if found.miss is None or limit is None:
        lost = found.lost.get("not legal")
        why = f", for example {layout_words(lost.example)}: {lost.why}" if lost and lost.example else ""
        return f"no layout of {job.name} is legal on {where}{why}"
    needs, has = memory_size(found.miss.memory.device_bytes), memory_size(limit)
    nearest = f"the leanest, {layout_words(found.miss.layout)}, needs {needs} on a GPU that has {has}"
    count = enough(task.space, task.estimates, task.per_node)
    way = f"{count} GPUs would do: --gpus {count}" if count else "no number of GPUs was found that would do"
    if found.miss.memory.device_bytes <= limit:
        nearest += f", and more than {NEARLY:.0%} is too much to count on"
        way += "; --measure tells whether it fits"
    return f"{job.name} does not fit {where} in any layout: {nearest}\n      {way}"
