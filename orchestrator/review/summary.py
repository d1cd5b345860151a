"""Reading runs as rows of a table: from their run directories alone."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.files.stored_files import open_stored
from orchestrator.launch.states.run_states import RunStatus, last_iteration, readable_statuses, statuses_of
from orchestrator.review.damage import DAMAGE
from orchestrator.review.run_summary import RunSummary
from orchestrator.run_directory.checkpoints.disk_use import disk_use
from orchestrator.run_directory.events.types import Pretrained
from orchestrator.run_directory.rundir import RunDir, cell_of, membership_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import stored_job
from orchestrator.tracking.description import flatten
from orchestrator.tracking.measurements.goodput import goodput
from orchestrator.tracking.measurements.metrics import Metric, read_records, step_of
from orchestrator.tracking.mlflow.cursor import unsent_bytes

PRETRAINED = "checkpoint.pretrained"
"""The field of a spec that says where the first weights come from."""
SENT_TO_MLFLOW = "tracking.mlflow"
"""The field of a spec that says whether the measurements go there."""
_TAGS = "tracking.tags."
SPARK_KEYS = ("train/loss", "validation/loss")
_SPARK_POINTS = 48
_LINE_BYTES = 4 << 10
_LAST_LINES = 2
"""The last one may be torn."""
_RECORDS_BETWEEN_RESTS = 500
_MOST_STEPS = 1 << 62
"""What a damaged log says beyond it is no step."""


def summarize(runs: Sequence[RunDir]) -> list[RunSummary]:
    """The summaries of runs, in their order, all but the goodput. A scheduler is asked once for all of them.

    What cannot be read of a run is said in its summary, and hides no other. Raises OSError where one vanished.
    """
    return [_summary(status) for status in statuses_of(runs)]


def summarize_each(runs: Sequence[RunDir], *, with_disk_use: bool = False) -> list[RunSummary]:
    """The same of runs any of which may vanish or make no sense: of such a one, only what is wrong with it.
    `with_disk_use`: also what a settled run takes of the disk, for which all but its checkpoints is looked through.
    """
    statuses, troubles = readable_statuses(runs)
    found = {run: _why_unreadable(run, error) for run, error in troubles.items()}
    for status in statuses:
        try:
            summary = _summary(status)
        except DAMAGE as error:
            summary = _why_unreadable(status.run, error)
        found[status.run] = _with_disk_use(summary, status) if with_disk_use else summary
    return [found[run] for run in runs]


def _why_unreadable(run: RunDir, error: Exception) -> RunSummary:
    problem = f"{type(error).__name__}: {error}"
    if not isinstance(error, OSError):
        return unreadable(run, problem)
    why = str(error.strerror)
    return replace(unreadable(run, problem, f"{error.filename}: {why}"), message=why)


def _with_disk_use(summary: RunSummary, status: RunStatus) -> RunSummary:
    """The same with what a settled run takes of the disk; without where it vanished meanwhile."""
    if not summary.is_settled:
        return summary
    try:
        return replace(summary, disk_bytes=disk_use(summary.run, status.checkpoints))
    except DAMAGE:
        return summary


def with_goodput(summary: RunSummary, now: float, rest: Callable[[], object] = lambda: None) -> RunSummary:
    """The same with its goodput, for which all of a run's measurements are read; without where its logs make no sense.
    `rest` is called now and then.
    """
    metrics = _resting(read_records(summary.run.metrics_file), rest)
    try:
        found = goodput(summary.run.events(), metrics, now if summary.is_active else None)
    except DAMAGE:
        return replace(summary, goodput=None)
    return replace(summary, goodput=found.fraction, lost_steps=found.lost_steps)


def _resting(metrics: Iterable[Metric], rest: Callable[[], object]) -> Iterator[Metric]:
    for number, metric in enumerate(metrics, start=1):
        yield metric
        if number % _RECORDS_BETWEEN_RESTS == 0:
            rest()


def _summary(status: RunStatus) -> RunSummary:
    run = status.run
    path, record, problem = _stored_spec(run)
    # Thousands of runs have mostly the same words.
    spec = {sys.intern(key): sys.intern(value) for key, value in flatten(record)}
    train_iters = world_size = None
    layout = ""
    if path is not None:
        try:
            job = stored_job(record, path)
            train_iters = last_iteration(job, status.checkpoints)
            world_size, layout = job.world_size, layout_of(job)
        except DAMAGE as error:
            problem = next(iter(str(error).splitlines()), type(error).__name__)
    sweep, cell = membership(run)
    labels = status.labels
    is_settled = _is_settled(status)
    is_sent = spec.get(SENT_TO_MLFLOW) == "true" and not status.is_active
    from_run, from_iteration = _origin(run, spec)
    return RunSummary(
        run=run,
        state=status.state,
        cause=status.cause,
        message=status.message,
        description=status.describe(),
        iteration=min(max(status.iteration or 0, 0), _MOST_STEPS),
        train_iters=train_iters,
        values=status.values,
        spreads=status.spreads,
        spark=spark(run.metrics_file),
        goodput=None,
        eta=_eta(status, train_iters),
        created=status.created,
        launched=status.launched,
        ended=status.ended,
        launches=status.launches,
        user=_owner(run.path),
        sweep=sweep,
        cell=cell,
        job_id=status.job.job_id if status.job else None,
        spec=spec,
        problem=problem,
        world_size=world_size,
        layout=layout,
        from_run=from_run,
        from_iteration=from_iteration,
        checkpoints=tuple(commit.iteration for commit in status.checkpoints),
        labels=labels,
        tags=(*labels.tags, *_tags_of(spec)),
        disk_bytes=None if is_settled else sum(commit.bytes for commit in status.checkpoints),
        unsent=_unsent(run) if is_sent else 0,
        record=json.dumps(status.to_json(), separators=(",", ":")),
        is_settled=is_settled,
    )


def _tags_of(spec: Mapping[str, str]) -> Iterator[str]:
    return (f"{key.removeprefix(_TAGS)}:{text}" for key, text in spec.items() if key.startswith(_TAGS))


def _is_settled(status: RunStatus) -> bool:
    """Not where a process, a scheduler or the time may change its state: one that was lost may yet say why it ended."""
    if status.is_active or status.state == "lost" or (status.job is not None and not status.job.is_over):
        return False
    launch, holder = status.events.last_launch, status.holder
    if launch is None:
        return holder is None
    return launch.exited is not None and (holder is None or (not holder.live and holder.launch_id == launch.launch_id))


def _unsent(run: RunDir) -> int:
    """How much of its measurements MLflow lacks; where that cannot be read, as another person's, nobody knows."""
    try:
        return unsent_bytes(run)
    except OSError:
        return 0


def _origin(run: RunDir, spec: Mapping[str, str]) -> tuple[str | None, int | None]:
    """The run that the first weights came from, as its start said; the events of few runs are read for that."""
    if spec.get(PRETRAINED) in (None, "null"):
        return None, None
    told = [event for event in run.events().all(Pretrained) if event.from_run]
    return (told[-1].from_run, told[-1].from_iteration) if told else (None, None)


def layout_of(job: JobSpec) -> str:
    """The parallel sizes of a job that are more than one: `TP2 PP4 DP8`; empty for a single process."""
    its = job.parallelism
    sizes = {
        "TP": its.tensor_model_parallel_size,
        "PP": its.pipeline_model_parallel_size,
        "CP": its.context_parallel_size,
        "EP": its.expert_model_parallel_size,
        "DP": job.world_size // its.model_parallel_size,
    }
    return " ".join(f"{name}{size}" for name, size in sizes.items() if size > 1)


def unreadable(run: RunDir, problem: str, message: str | None = None) -> RunSummary:
    """A run of which nothing can be told but why; `message` says that to programs."""
    return RunSummary(
        run=run,
        state="lost",
        cause=None,
        message=problem,
        description=f"it cannot be read: {problem}",
        iteration=0,
        train_iters=None,
        values={},
        spark=(),
        goodput=None,
        eta=None,
        created=None,
        launched=None,
        ended=None,
        launches=0,
        user=_owner(run.path),
        sweep=None,
        cell=None,
        job_id=None,
        spec={},
        problem=problem,
        record=json.dumps({"state": "unreadable", "message": message or problem}),
        is_readable=False,
    )


def _stored_spec(run: RunDir) -> tuple[Path | None, dict[str, Any], str | None]:
    """The newest resolved spec, its file and what it holds; where it cannot be read, None, nothing, and why.

    Its rules are not asked: what an older version wrote, or a damaged file, can still be searched and compared.
    """
    try:
        path = run.resolved()
        record = run.read_json(path)
    except UserError as error:
        return None, {}, str(error)
    except (OSError, ValueError) as error:
        return None, {}, f"{run.path / 'resolved.json'} cannot be read: {error}"
    if not isinstance(record, dict):
        return None, {}, f"{run.path / 'resolved.json'} holds no spec"
    return path, record, None


def membership(run: RunDir) -> tuple[str | None, str | None]:
    """The names of the sweep and the cell that a run was made for; None twice for any other run."""
    cell = cell_of(run)
    if cell is None:
        return None, None
    return str(membership_of(run).get("sweep")), cell


def spark(path: Path) -> tuple[float, ...]:
    """About 48 losses from the first to the last, read from as many places of the log and not from all of it."""
    found: list[tuple[int, float]] = []
    try:
        with open_stored(path, path.parent) as file:
            size = file.seek(0, os.SEEK_END)
            if size <= _SPARK_POINTS * _LINE_BYTES:
                file.seek(0)
                lines = file.read().splitlines()
                step = max(1, len(lines) // (2 * _SPARK_POINTS))
                candidates = lines[::step] + lines[-_LAST_LINES:]
            else:
                candidates = []
                for number in range(_SPARK_POINTS):
                    file.seek(number * (size - _LINE_BYTES) // (_SPARK_POINTS - 1))
                    part = file.read(_LINE_BYTES).splitlines()
                    candidates += part[1:3] if number else part[:1]
                candidates += part[-_LAST_LINES:]
    except OSError:
        return ()
    for line in candidates:
        loss = _loss(line)
        if loss is not None:
            found.append(loss)
    kept: list[tuple[int, float]] = []
    for iteration, value in found:
        while kept and kept[-1][0] >= iteration:  # what a resume has undone counts no more
            kept.pop()
        kept.append((iteration, value))
    return tuple(value for _, value in kept)


def _loss(line: bytes) -> tuple[int, float] | None:
    """The iteration and the loss in a line of measurements; None for any other."""
    iteration, values = step_of(line) or (0, {})
    value = next((values[key] for key in SPARK_KEYS if key in values), math.nan)
    return (iteration, value) if math.isfinite(value) else None


def _eta(status: RunStatus, train_iters: int | None) -> float | None:
    """Seconds to the end at the pace of the last steps; None for a run that does not go on."""
    seconds = status.values.get("throughput/step_seconds", 0.0)
    if not status.is_live or train_iters is None or not (0 < seconds < math.inf):
        return None
    return max(0, train_iters - (status.iteration or 0)) * seconds


def _owner(path: Path) -> str | None:
    """Who made the run directory; None where the system does not say."""
    try:
        return path.owner()
    except (OSError, KeyError):
        return None
