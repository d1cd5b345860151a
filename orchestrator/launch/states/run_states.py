"""What state a run is in, derived from its events, its lease, its exit records and the scheduler. Nothing is stored."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, BinaryIO

from orchestrator.errors import UserError
from orchestrator.files.stored_files import DAMAGE
from orchestrator.launch.run_names import must_be_readable
from orchestrator.launch.states.cluster_states import SchedulerReport, ask_the_schedulers, state_on_cluster
from orchestrator.launch.states.state_words import (
    SECONDS_TO_TAKE_THE_LEASE,
    State,
    state_after,
    withdrawn_end,
    working_state,
    written_end,
)
from orchestrator.launch.states.submitted_job import SubmittedJob, latest_job
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.training_schedule.progress import progress_of
from orchestrator.run_directory.checkpoints.commit_markers import Commit, committed
from orchestrator.run_directory.events.labels import Labels
from orchestrator.run_directory.events.log import EventLog, Launch
from orchestrator.run_directory.events.types import Launched
from orchestrator.run_directory.exits.causes import Exit, by_word_of_the_ranks, cause_of
from orchestrator.run_directory.labels import read_labels
from orchestrator.run_directory.lease import Holder, read_holder
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.tracking.measurements.latest import speeds_of, spread, usual
from orchestrator.tracking.measurements.metrics import step_of

_METRIC_TAIL_BYTES = 64 << 10
_MOST_METRIC_TAILS = 128
"""How far back from its end a log is searched for the last evaluation: 8 MB, some 25,000 steps."""
_EVALUATED = b'"validation/'


@dataclass(frozen=True)
class RunStatus:
    """One run as it is now. `cause` and `message` are None while it runs; `iteration` is the last one measured.

    `values`: the last of each metric, of a speed (`throughput/…`) the median of its latest steps; `spreads`: how far
    the speeds of these steps lie from each other.
    """

    run: RunDir
    state: State
    cause: str | None
    message: str | None
    iteration: int | None
    values: dict[str, float]
    spreads: dict[str, float]
    checkpoints: list[Commit]
    holder: Holder | None
    launch_id: str | None
    created: float | None
    launched: float | None
    ended: float | None
    launches: int
    job: SubmittedJob | None
    """Its job on a cluster, when its latest start was one."""
    reason: str | None
    """Why it waits in the queue, or what is not known of it."""
    evidence: tuple[str, ...]
    """Lines of its logs that show why it ended."""
    events: EventLog
    """Its event log, from which this was derived."""

    @cached_property
    def labels(self) -> Labels:
        """What people say of it, read when first asked for."""
        return read_labels(self.run.path)

    @property
    def is_live(self) -> bool:
        """Whether some process works on it."""
        return self.state in ("running", "stopping")

    @property
    def is_active(self) -> bool:
        """Whether it works or will do so without anybody's doing."""
        return self.is_live or self.state == "queued"

    def describe(self) -> str:
        """The state in one sentence."""
        if self.cause is None or self.state == "completed":
            return f"{self.state}: {self.reason}" if self.reason else self.state
        sentence = cause_of(self.cause).sentence
        if self.state == "stopped":
            return sentence
        said = self.state if self.state == "cancelled" else f"{self.state}: {sentence}"
        return said + (f" ({self.message})" if self.message else "")

    def to_json(self) -> dict[str, Any]:
        """For programs. `name`: of its job, and of its folder; `shown_name`: what it is called after a `rename`."""
        return {
            "run_id": self.run.run_id,
            "name": self.run.name,
            "shown_name": self.labels.name or self.run.name,
            "path": str(self.run.path),
            "state": self.state,
            "cause": self.cause,
            "message": self.message,
            "iteration": self.iteration,
            "values": {key: value if math.isfinite(value) else str(value) for key, value in self.values.items()},
            "checkpoints": [commit.iteration for commit in self.checkpoints],
            "holder": None
            if self.holder is None or not self.holder.live
            else {
                "host": self.holder.process.host,
                "pid": self.holder.process.pid,
                "since": self.holder.since,
                "token": self.holder.token,
            },
            "launch_id": self.launch_id,
            "created": self.created,
            "launched": self.launched,
            "ended": self.ended,
            "launches": self.launches,
            "job_id": self.job.job_id if self.job else None,
            "data_job_id": self.job.data.job_id if self.job and self.job.data else None,
            "cluster": self.job.cluster if self.job else None,
            "reason": self.reason,
            "evidence": list(self.evidence),
        }


def last_iteration(job: JobSpec, checkpoints: Sequence[Commit]) -> int:
    """Where the training of a run with these checkpoints ends: not at the schedule's number of steps, where some steps
    had a batch of another size. Raises UserError for a spec that says no length.
    """
    try:
        done = progress_of(checkpoints[-1], job) if checkpoints else None
        return BatchSchedule.of(job, done).train_iters
    except (AssertionError, ArithmeticError) as error:  # a stored spec is not held against the rules
        raise UserError(
            f"the stored spec of {job.name} has an invalid length: {error}", code="unreadable_stored_spec"
        ) from error


def status_of(run: RunDir) -> RunStatus:
    """The status of a run. A scheduler that cannot be asked takes nothing from it but its own word. Raises UserError
    where the run cannot be read.
    """
    with must_be_readable(run):
        return statuses_of([run])[0]


def statuses_of(runs: Sequence[RunDir]) -> list[RunStatus]:
    """The statuses of many runs, with one question to each scheduler for all of them."""
    events = [run.events() for run in runs]
    jobs = [latest_job(each) for each in events]
    words = ask_the_schedulers(job for job in jobs if job is not None)
    for number, (run, job) in enumerate(zip(runs, jobs, strict=True)):
        if job is not None and job.unsettled:
            events[number], jobs[number] = _since_then(run, events[number], job)
    return [_status(run, each, job, words) for run, each, job in zip(runs, events, jobs, strict=True)]


def readable_statuses(runs: Sequence[RunDir]) -> tuple[list[RunStatus], dict[RunDir, Exception]]:
    """The statuses of those runs that can be read, and what keeps the others from it."""
    try:
        return statuses_of(runs), {}
    except DAMAGE:
        troubles = {run: error for run in runs if (error := _trouble(run)) is not None}
    return statuses_of([run for run in runs if run not in troubles]), troubles


def unreadable(run: RunDir, error: Exception) -> RunStatus:
    """The status of a run of which no more can be told than why."""
    said = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    return RunStatus(
        run=run,
        state="lost",
        cause=None,
        message=None,
        iteration=None,
        values={},
        spreads={},
        checkpoints=[],
        holder=None,
        launch_id=None,
        created=None,
        launched=None,
        ended=None,
        launches=0,
        job=None,
        reason=f"it cannot be read: {said}",
        evidence=(),
        events=EventLog(),
    )


def _trouble(run: RunDir) -> Exception | None:
    """What is wrong where files of a run cannot be read, or make no sense; nobody else is asked about it."""
    try:
        events = run.events()
        _status(run, events, latest_job(events), SchedulerReport({}))
    except DAMAGE as error:
        return error
    return None


def _since_then(run: RunDir, events: EventLog, job: SubmittedJob) -> tuple[EventLog, SubmittedJob]:
    """The events and the job as they are after the scheduler was asked about it: a job that it says is over may have
    written why only after they were read. Of another job, submitted since, it has said nothing.
    """
    newer = run.events()
    found = latest_job(newer)
    return (newer, found) if found is not None and found.job_id == job.job_id else (events, job)


def _status(run: RunDir, events: EventLog, job: SubmittedJob | None, words: SchedulerReport) -> RunStatus:
    launch = events.last_launch
    holder = read_holder(run)
    if job is None:
        state, end = _state(run, launch, holder)
        source = events.imported_from if state == "created" else None
        reason = None if source is None else f"weights to start from, imported from {source}"
        if launch is not None and launch.exited is not None and end is None and starts_again(launch):
            reason = f"it restarts after this: {cause_of(written_end(launch.exited).cause).sentence}"
        state = state if source is None else "imported"
    else:
        state, end, reason = state_on_cluster(run, job, holder, words)
    try:
        measured = last_metrics(run)
    except OSError as error:
        measured, reason = (
            LatestMetrics(None, {}, {}),
            reason or f"{run.metrics_file.name} is not read: {error.strerror}",
        )
    return RunStatus(
        run=run,
        state=state,
        cause=end.cause if end else None,
        message=(end.message or None) if end else None,
        iteration=measured.iteration if measured.iteration is not None else (end.iteration if end else None),
        values=measured.values,
        spreads=measured.spreads,
        checkpoints=committed(run),
        holder=holder,
        launch_id=launch.launch_id if launch else None,
        created=events.created,
        launched=launch.launched.time if launch else None,
        ended=launch.exited.time if launch and launch.exited else None,
        launches=len(events.all(Launched)),
        job=job,
        reason=reason,
        evidence=end.evidence if end else (),
        events=events,
    )


def _state(run: RunDir, launch: Launch | None, holder: Holder | None) -> tuple[State, Exit | None]:
    lives = holder is not None and holder.live
    if launch is None:
        return ("running" if lives else "created"), None
    exited = launch.exited
    if starts_again(launch):
        return working_state(run), None
    if exited is not None and not (lives and holder is not None and holder.launch_id != launch.launch_id):
        end = written_end(exited)
        end = withdrawn_end(end) if launch.withdrawn else end
        return state_after(end.cause), end
    if lives or (exited is None and not _launcher_is_gone(launch, holder)):
        return working_state(run), None
    end = by_word_of_the_ranks(run, launch.launch_id) or Exit("lost", "", None, cause_of("lost").exit_code)
    return state_after(end.cause), end


def starts_again(launch: Launch | None) -> bool:
    """Whether a launcher of this machine waits to start the run again."""
    return launch is not None and launch.restarts and launch.launched.process.is_alive


def _launcher_is_gone(launch: Launch, holder: Holder | None) -> bool:
    """Whether a launcher without an `exited` event has ended.

    One on another host is judged by the lease of its ranks, which they take within minutes of the start.
    """
    process = launch.launched.process
    if process.is_here:
        return process.is_dead
    took_lease = holder is not None and holder.launch_id == launch.launch_id
    return took_lease or time.time() - (launch.launched.time or 0.0) > SECONDS_TO_TAKE_THE_LEASE


@dataclass(frozen=True)
class LatestMetrics:
    """The end of a run's measurements, as `RunStatus` has them."""

    iteration: int | None
    values: dict[str, float]
    spreads: dict[str, float]


def last_metrics(run: RunDir) -> LatestMetrics:
    """The last iteration measured, and what is told of every key, from the end of metrics.jsonl."""
    try:
        with run.open(run.metrics_file) as file:
            pieces = islice(_pieces_from_the_end(file), _MOST_METRIC_TAILS)
            lines = next(pieces, b"").splitlines()
            if not any(_EVALUATED in line for line in lines):
                evaluated = next((piece for piece in pieces if _EVALUATED in piece), b"")
                lines[:0] = [line for line in evaluated.splitlines() if _EVALUATED in line]
    except FileNotFoundError:
        return LatestMetrics(None, {}, {})
    found: list[tuple[int, dict[str, float]]] = []
    values: dict[str, float] = {}
    for step in map(step_of, lines):
        if step is not None:
            found.append(step)
            values |= step[1]
    speeds = speeds_of(found)
    usually = {key: median for key, each in speeds.items() if (median := usual(each)) is not None}
    spreads = {key: apart for key, each in speeds.items() if (apart := spread(each)) is not None}
    return LatestMetrics(found[-1][0] if found else None, values | usually, spreads)


def _pieces_from_the_end(file: BinaryIO) -> Iterator[bytes]:
    """What is in a file, some whole lines at a time, the last ones first; without lines that are longer than that."""
    end = file.seek(0, 2)
    while end > 0:
        begin = max(0, end - _METRIC_TAIL_BYTES)
        file.seek(begin)
        piece = file.read(end - begin)
        first = piece.find(b"\n") + 1 if begin > 0 else 0
        yield piece[first:]
        end = begin + first if first < len(piece) else begin
