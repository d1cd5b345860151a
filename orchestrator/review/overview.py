"""What stands at the head of a run's page: why it ended and what to do, who holds it, and what it came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.launch.event_messages import evidence_of
from orchestrator.review.logs.pages import closing_lines
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.summary import PRETRAINED
from orchestrator.run_directory.checkpoints.newest import begins_anew
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import Exited, Launched, Pretrained, Started, StepSkipped, Submitted
from orchestrator.run_directory.exits.causes import cause_of
from orchestrator.run_directory.lease import read_holder
from orchestrator.run_directory.rundir import RunDir, in_command
from orchestrator.tracking.measurements.goodput import Goodput
from orchestrator.tracking.mlflow.links import mlflow_url

_LEAST_SECONDS = 0.05


@dataclass(frozen=True)
class RelatedRun:
    """Another run. `name` and `run_id` say where its page is; None where it does not lie in this folder."""

    text: str
    name: str | None = None
    run_id: str | None = None


@dataclass(frozen=True)
class Overview:
    """All None or empty where there is nothing to say. `device`: what the latest start trained on.
    `parameters`: of the model, over all ranks; `parameters_of_rank_0`: those that it holds, where that is not all.
    """

    advice: str | None
    evidence: tuple[str, ...]
    """Lines of the logs that show why it ended, each after its log where that is known."""
    node: str | None
    holder: str | None
    job_id: str | None
    cluster: str | None
    nodes: tuple[str, ...]
    device: str | None
    world_size: int | None
    parameters: int | None
    parameters_of_rank_0: int | None
    parent: RelatedRun | None
    children: tuple[RelatedRun, ...]
    skipped_steps: int
    mlflow: str | None
    """The address of its page in MLflow."""
    unsent: int
    """Bytes of the metrics of a run that has ended which MLflow lacks."""


def overview_of(summary: RunSummary, others: Iterable[RunSummary]) -> Overview:
    """Read it; `others` are the runs of the folder, among which its children are."""
    run = summary.run
    events = run.events()
    end = events.last_end if summary.cause is not None else None
    launched, submitted, started = events.last(Launched), events.last(Submitted), events.last(Started)
    cause = cause_of(summary.cause) if summary.cause is not None else None
    advice = cause.advise(in_command(run), anew=begins_anew(run, events)) if cause is not None else None
    total, held = (started.total_parameters, started.parameters) if started else (None, None)
    return Overview(
        advice=advice or None,
        evidence=_evidence(run, summary, end),
        node=end.node if end is not None else None,
        holder=_holder(run),
        job_id=summary.job_id,
        cluster=submitted.cluster if submitted and summary.job_id is not None else None,
        nodes=(launched.nodes if launched else None) or (),
        device=started.device if started else None,
        world_size=started.world_size if started else None,
        parameters=total,
        parameters_of_rank_0=held if held != total else None,
        parent=_parent(run, events, summary),
        children=tuple(_children(run, others)),
        skipped_steps=len(events.all(StepSkipped)),
        mlflow=mlflow_url(run),
        unsent=summary.unsent,
    )


def parts_of_time(goodput: Goodput) -> list[tuple[str, float, float]]:
    """Where a run's time went: what for, seconds and the share of all but the first wait; productive steps first, and
    then the largest.
    """
    counted = goodput.wall_seconds - goodput.first_queue_seconds
    rest = {
        "in the queue again": goodput.queue_seconds - goodput.first_queue_seconds,
        "starting": goodput.startup_seconds,
        "steps that were undone": goodput.lost_seconds,
        "saving, evaluating, waiting": goodput.overhead_seconds,
        "idle between launches": goodput.idle_seconds,
    }
    parts = [("steps that count", goodput.productive_seconds)]
    parts += sorted(rest.items(), key=lambda part: -part[1])
    return [(name, seconds, seconds / counted) for name, seconds in parts if counted > 0 and seconds >= _LEAST_SECONDS]


def _evidence(run: RunDir, summary: RunSummary, end: Exited | None) -> tuple[str, ...]:
    """As the end itself says; else the lines in which its message stands."""
    if summary.state not in ("failed", "lost"):
        return ()
    said = evidence_of(end) if end is not None else ()
    if said:
        return said
    return tuple(closing_lines(run, summary.message or ""))


def _holder(run: RunDir) -> str | None:
    holder = read_holder(run)
    return holder.describe() if holder is not None and holder.live else None


def _parent(run: RunDir, events: EventLog, summary: RunSummary) -> RelatedRun | None:
    """The run that the weights came from, as its first start said; before that, what the spec says."""
    if (event := events.last(Pretrained)) is not None:
        at = f"iteration {event.from_iteration}"
        if event.from_run:
            return _relative(run.path.parent.parent, event.from_run, f"{event.from_run}, {at}")
        return RelatedRun(f"{event.checkpoint}, {at}")
    written = summary.spec.get(PRETRAINED)
    return None if written in (None, "null") else RelatedRun(str(written))


def _relative(runs_dir: Path, key: str, text: str) -> RelatedRun:
    """A run by `name/run_id`, with a link where it lies beside this one."""
    name, _, run_id = key.partition("/")
    if name in ("", ".", "..") or run_id in ("", ".", "..") or "/" in run_id:
        return RelatedRun(text)
    there = (runs_dir / name / run_id / "resolved.json").exists()
    return RelatedRun(text, name, run_id) if there else RelatedRun(text)


def _children(run: RunDir, others: Iterable[RunSummary]) -> Iterable[RelatedRun]:
    """Runs that began with the weights of this one."""
    key = f"{run.name}/{run.run_id}"
    for other in others:
        if other.from_run == key and other.run.path != run.path:
            yield RelatedRun(f"{other.key}, from iteration {other.from_iteration}", other.run.name, other.run.run_id)
