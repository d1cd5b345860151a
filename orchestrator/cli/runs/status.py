"""`orchestrator status`: one run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

import typer

from orchestrator.api.starts.run_sentences import bytes_unsent, label, unsent_words
from orchestrator.cli.common import AsJson, RunName, RunsDir, aligned, print_json
from orchestrator.launch.kernel_choices import choices_line
from orchestrator.launch.runs import find_run
from orchestrator.launch.states.run_states import RunStatus, last_iteration, status_of
from orchestrator.quantities import age, clock_time, disk_size, short_count
from orchestrator.review.damage import readable
from orchestrator.run_directory.checkpoints.disk_use import disk_use
from orchestrator.run_directory.checkpoints.newest import begins_anew, passed_over
from orchestrator.run_directory.events.labels import Labels
from orchestrator.run_directory.events.types import FirstStep, Started
from orchestrator.run_directory.exits.causes import cause_of
from orchestrator.run_directory.results.record import newest_results
from orchestrator.run_directory.rundir import RunDir, default_runs_dir, in_command
from orchestrator.spec.loading import load_resolved
from orchestrator.tracking.measurements.goodput import Goodput, goodput
from orchestrator.tracking.measurements.metrics import read_records
from orchestrator.tracking.mlflow.links import mlflow_url


def command(run_name: RunName, runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """Show the status of a run: state, cause, progress, losses, checkpoints, lost time, who holds it, where it is.

    \b
    Example:
      orchestrator status gpt-small
      orchestrator status 3f9a --json
    """
    run = find_run(run_name, runs_dir or default_runs_dir())
    status = status_of(run)
    now = time.time() if status.is_active else None
    spent, unmeasured = readable(lambda: goodput(status.events, read_records(run.metrics_file), now))
    spent = spent or goodput(status.events, (), now)
    job, no_spec = readable(lambda: load_resolved(run.resolved()))
    total, no_length = readable(lambda: last_iteration(job, status.checkpoints)) if job is not None else (None, no_spec)
    problems = [each for each in (no_length, unmeasured) if each is not None]
    unsent = 0 if status.is_active or job is None else bytes_unsent(run, job)
    if as_json:
        found = [result.to_json() for result in newest_results(run)]
        also = {
            "computes_on": status.events.choices,
            **({} if (nodes := _nodes(status)) is None else {"nodes": nodes}),
            "goodput": spent.to_json(),
            "unsaved_steps": _unsaved_steps(status, spent),
            "first_step": first.said() if (first := _first_step(status)) else None,
            "passed_over": _passed_over(status),
            "evaluations": found,
            "disk_bytes": disk_use(run, status.checkpoints),
        }
        labels = {"labels": asdict(status.labels)} if status.labels != Labels() else {}
        sent = {"mlflow_url": mlflow_url(run), "mlflow_unsent_bytes": unsent}
        print_json({**status.to_json(), "train_iters": total, "problems": problems, **also, **labels, **sent})
        return
    typer.echo(f"run {label(run)}")
    lines = _lines(status, spent, total, unsent, job.launch.nodes if job is not None else None, problems)
    typer.echo(aligned([[f"  {name}", text] for name, text in lines]))


def _nodes(status: RunStatus) -> int | None:
    """On how many nodes it was last started, of a job that may run on fewer than it names."""
    started = status.events.last(Started)
    return None if started is None else started.nodes


def _lines(
    status: RunStatus, spent: Goodput, total: int | None, unsent: int, most_nodes: int | None, problems: Sequence[str]
) -> list[tuple[str, str]]:
    run = status.run
    labels = status.labels
    lines = [("state", status.describe() + (" (archived)" if labels.archived else ""))]
    lines += [("" if number else "damaged", line) for number, line in enumerate(problems)]
    lines += [("" if number else "shown by", line) for number, line in enumerate(status.evidence)]
    lines += [("tags", ", ".join(labels.tags))] if labels.tags else []
    lines += [("" if number else "note", line) for number, line in enumerate(labels.note.splitlines())]
    lines += [("renamed from", ", ".join(labels.former_names))] if labels.former_names else []
    lines.append(("iteration", f"{status.iteration or 0} of {total or '?'}"))
    values = status.values
    for key, name in (("train/loss", "loss"), ("validation/loss", "validation loss"), ("train/lr", "learning rate")):
        if key in values:
            lines.append((name, f"{values[key]:.6g}"))
    if "throughput/tokens_per_second" in values:
        lines.append(("speed", f"{short_count(values['throughput/tokens_per_second'])} tokens/s total"))
    saved = ", ".join(str(commit.iteration) for commit in status.checkpoints[-8:])
    lines.append(("checkpoints", saved or "none"))
    lines.append(("disk", _disk_line(status)))
    lines += [
        ("" if number else "passed over", message) for number, message in enumerate(_passed_over(status).values())
    ]
    lines += [("" if number else "evaluations", line) for number, line in enumerate(_evaluations(run))]
    if spent.launches:
        lines.append(("launches", _launches_line(spent, _unsaved_steps(status, spent))))
        lines += _goodput_line(spent)
    if (nodes := _nodes(status)) is not None:
        lines.append(("nodes", f"{nodes} of {most_nodes or '?'} (launch.min_nodes)"))
    if (choices := status.events.choices) is not None:
        lines.append(("computes on", choices_line(choices)))
    if (first := _first_step(status)) is not None:
        lines.append(("first step", _first_step_words(first)))
    if status.holder is not None and status.holder.live:
        lines.append(("held by", status.holder.describe()))
    if status.created:
        lines.append(("created", f"{age(time.time() - status.created)} ago"))
    lines.append(("folder", str(run.path)))
    lines.append(("logs", f"orchestrator logs {in_command(run)}"))
    if (url := mlflow_url(run)) is not None:
        lines.append(("mlflow", url))
    if unsent:
        lines.append(("not sent", unsent_words(run, unsent)))
    if status.state == "imported":
        lines.append(("next", f"start a job from it, with checkpoint.pretrained: {run.path}"))
    elif status.state == "created":
        lines.append(("next", f"orchestrator resume {in_command(run)}, or run or submit its spec again"))
    if status.cause is not None:
        advice = cause_of(status.cause).advise(in_command(run), anew=begins_anew(run, status.events))
        lines += [("next", advice)] if advice else []
    return lines


def _disk_line(status: RunStatus) -> str:
    """What it takes of the disk."""
    saved, total = sum(commit.bytes for commit in status.checkpoints), disk_use(status.run, status.checkpoints)
    return f"{disk_size(total)}, {disk_size(saved)} of it checkpoints" if status.checkpoints else disk_size(total)


def _unsaved_steps(status: RunStatus, spent: Goodput) -> int:
    """How many steps a resume would lose; none where nobody would resume it, or it may yet save them."""
    if status.is_live or status.state == "completed":
        return 0
    saved = status.checkpoints[-1].iteration if status.checkpoints else 0
    return max(0, spent.reached - saved)


def _launches_line(spent: Goodput, unsaved: int) -> str:
    """How many, and what they have lost; of the last one only a resume will show it."""
    more = f"; a resume loses {unsaved} more, which no checkpoint has" if unsaved else ""
    return f"{spent.launches}, {spent.lost_steps} steps lost{more}"


def _passed_over(status: RunStatus) -> dict[int, str]:
    """What is wrong with each checkpoint that a start could not go on from, of those that are still there."""
    found = passed_over(status.events)
    return {iteration: message for iteration, message in found.items() if status.run.checkpoint(iteration).exists()}


def _first_step(status: RunStatus) -> FirstStep | None:
    """The newest event of that name that has the duration of the start."""
    told = (each for each in reversed(status.events.all(FirstStep)) if each.iteration is not None)
    return next((each for each in told if each.seconds is not None), None)


def _first_step_words(event: FirstStep) -> str:
    """How long the start took, and its parts in their order."""
    seconds = event.seconds or {}
    parts = ", ".join(f"{part.replace('_', ' ')} {value:.1f}" for part, value in seconds.items() if value >= 0.05)
    since = "the launch" if "launch" in seconds else "the start of its process"
    return f"iteration {event.iteration}, {sum(seconds.values()):.1f} s after {since} ({parts})"


def _evaluations(run: RunDir) -> list[str]:
    """The metric that matters most of each task, of the latest checkpoint that was measured on it."""
    lines = []
    for result in newest_results(run):
        for name, measure in list(result.metrics.items())[:1]:
            error = "" if measure.stderr is None else f" ± {measure.stderr:.3g}"
            lines.append(f"{result.name}: {name} {measure.value:.5g}{error} (iteration {result.iteration})")
    return lines


def _goodput_line(goodput: Goodput) -> list[tuple[str, str]]:
    """The share of the time that went into steps that count, and where the rest went, largest part first."""
    if goodput.fraction is None:
        return []
    rest = {
        "in the queue": goodput.queue_seconds - goodput.first_queue_seconds,
        "starting": goodput.startup_seconds,
        "steps lost": goodput.lost_seconds,
        "saving, evaluating, waiting": goodput.overhead_seconds,
        "not asked to run": goodput.idle_seconds,
    }
    parts = [
        f"{name} {clock_time(rest[name])}" for name in sorted(rest, key=lambda name: -rest[name]) if rest[name] >= 0.5
    ]
    counted = clock_time(goodput.wall_seconds - goodput.first_queue_seconds)
    text = f"{goodput.fraction:.0%}: {clock_time(goodput.productive_seconds)} of training in {counted}"
    first = (
        f"; first {clock_time(goodput.first_queue_seconds)} in the queue" if goodput.first_queue_seconds >= 0.5 else ""
    )
    return [("goodput", text + (f" ({', '.join(parts)})" if parts else "") + first)]
