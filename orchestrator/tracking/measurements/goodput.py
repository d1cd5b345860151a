"""Goodput: how much of a run's time went into steps that count, and where the rest went. From its two logs alone.

Every second from the first submission (where there was none, from the first start) to the end belongs to one part:

    queue       waiting in a scheduler's queue: from `submitted` or `requeued` to `launched`; where the same job starts
                again, from the end of the start before, or its last sign of life
    startup     from `launched` to the first step of that start
    productive  steps whose result the run still has, each counted once
    lost        steps that were measured, and undone by a resume from an earlier checkpoint
    overhead    the rest of a start: saves that were waited for, evaluations, steps never measured, shutting down
    idle        nobody had asked for it to run

    goodput = productive / (all - the queue before the first start)

The first wait is left out because it says something about the cluster, not about the run; `fraction_of_wall` has it in.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, TypeGuard, TypeVar

from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import Event, Exited, Launched, Requeued, Started, Submitted
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import Metric, read_records

_Entry = TypeVar("_Entry")

_MOST_STEPS = 1 << 62
_END_OF_TIME = 1e11  # in the year 5138: what is later is not a time
_STEP_SECONDS = "throughput/step_seconds"
_TOKEN_RATE = "throughput/tokens_per_second"


@dataclass(frozen=True)
class Goodput:
    """Times in seconds; the parts add up to `wall_seconds`. `lost_steps`: steps that were undone; `reached`: the step
    that the training stands at; a start that went back stands at its checkpoint until it has done one.
    """

    launches: int = 0
    lost_steps: int = 0
    reached: int = 0
    productive_seconds: float = 0.0
    lost_seconds: float = 0.0
    overhead_seconds: float = 0.0
    startup_seconds: float = 0.0
    queue_seconds: float = 0.0
    idle_seconds: float = 0.0
    first_queue_seconds: float = 0.0
    wall_seconds: float = 0.0

    @property
    def fraction(self) -> float | None:
        """The goodput, from 0 to 1; None before there is any time to speak of."""
        return _share(self.productive_seconds, self.wall_seconds - self.first_queue_seconds)

    @property
    def fraction_of_wall(self) -> float | None:
        """The same with the wait before the first start in it."""
        return _share(self.productive_seconds, self.wall_seconds)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "fraction": self.fraction, "fraction_of_wall": self.fraction_of_wall}


def goodput_of(run: RunDir, now: float | None = None) -> Goodput:
    """Of a run directory; see `goodput`."""
    return goodput(run.events(), read_records(run.metrics_file), now)


def goodput(events: EventLog, metrics: Iterable[Metric], now: float | None = None) -> Goodput:
    """Account for a run's time. `now`: seconds since the epoch, when the run goes on or waits in a queue; None when it
    has ended, and its last word counts.

    Takes logs as they are: events may be missing or torn, and clocks may go back. A time that is earlier than one that
    was written before it counts as that one.
    """
    account = _Account()
    for time, entry in _timeline(events, metrics):
        if isinstance(entry, Metric):
            account.measured(time, entry)
        else:
            account.happened(time, entry)
    return account.close(now)


@dataclass
class _Launch:
    """One start. `sign`: when it was last heard of; `reached`: the last step that it spoke of when it ended; `busy`:
    seconds of its measured steps, `lost` of them undone.
    """

    launch_id: Any
    job_id: Any
    launched: float
    sign: float
    ended: float | None = None
    ended_by_itself: bool = False
    reached: Any = None
    first_step: float | None = None
    last_record: Metric | None = None
    busy: float = 0.0
    lost: float = 0.0

    @property
    def end(self) -> float:
        return self.sign if self.ended is None else max(self.sign, self.ended)

    def parts(self) -> tuple[float, float, float, float]:
        """Seconds that were productive, lost, overhead and start-up. Steps never take more time than there was."""
        span = self.end - self.launched
        startup = span if self.first_step is None else max(0.0, min(span, self.first_step - self.launched))
        scale = min(1.0, (span - startup) / self.busy) if self.busy > 0 else 0.0
        lost = self.lost * scale
        productive = self.busy * scale - lost
        return max(0.0, productive), lost, max(0.0, span - startup - self.busy * scale), startup


@dataclass(slots=True)
class _Steps:
    """The steps after `first` up to `last`, which the run still has, and the start that they belong to."""

    launch: _Launch
    first: int
    last: int
    seconds: float


@dataclass
class _Account:
    """`position`: the step that the training has reached; `waiting_since`: when the run was last put into a queue."""

    begin: float | None = None
    waiting_since: float | None = None
    launches: list[_Launch] = field(default_factory=list)
    kept: list[_Steps] = field(default_factory=list)
    position: int = 0
    lost_steps: int = 0
    queue: float = 0.0
    first_queue: float = 0.0
    idle: float = 0.0

    def happened(self, time: float, event: Event) -> None:
        """Take in an event."""
        launch = self.launches[-1] if self.launches else None
        launch_id = event.of_launch
        is_current = launch is not None and launch_id in (None, launch.launch_id)
        match event:
            case Submitted() | Requeued():
                self.begin = time if self.begin is None else self.begin
                self.waiting_since = time
                if launch is not None and is_current and isinstance(event, Requeued) and event.by == "slurm":
                    self._end_unspoken(launch)
            case Launched():
                self._launch(time, launch_id, event.job_id)
            case Started():
                if launch is None or (not is_current and all(each.launch_id != launch_id for each in self.launches)):
                    self._launch(time, launch_id, None)
                self.launches[-1].sign = time
                self._begin_at(event.iteration)
            case Exited() if launch is not None and is_current and launch.ended is None:
                launch.ended, launch.ended_by_itself = time, event.code is not None
                launch.reached = event.iteration
            case _ if launch is not None and is_current and launch.ended is None:
                launch.sign = time

    def measured(self, time: float, record: Metric) -> None:
        """Take in a measurement."""
        if not self.launches:
            self._launch(time, None, None)
        launch = self.launches[-1]
        launch.sign = time
        if record.is_evaluation or not _is_step(record.iteration) or record.iteration == 0:
            return  # an evaluation, or nonsense
        if record.iteration <= self.position:  # resumed, though no event says from where
            self._go_back(max((steps.last for steps in self.kept if steps.last < record.iteration), default=0))
        seconds = min(_seconds(launch.last_record, record, self.position), time - launch.launched)
        if launch.first_step is None:
            launch.first_step = time - seconds
        self._keep(launch, record.iteration, seconds)
        launch.last_record = record if record.time == time else record._replace(time=time)

    def close(self, now: float | None) -> Goodput:
        """The sums; where the run goes on, with the time up to now."""
        if self.begin is None:
            return Goodput()
        self._settle_last()
        launch = self.launches[-1] if self.launches else None
        end = launch.end if launch is not None else self.begin
        until = max(end, self.waiting_since or end, end if now is None else now)
        if launch is not None and launch.ended is None and self.waiting_since is None:
            launch.sign = until
        else:
            self._pause(end, until, same_job=False)
        if launch is None:
            self.first_queue = self.queue
        parts = [each.parts() for each in self.launches]
        productive, lost, overhead, startup = (math.fsum(part[index] for part in parts) for index in range(4))
        return Goodput(
            launches=len(self.launches),
            lost_steps=self.lost_steps,
            reached=self.position,
            productive_seconds=productive,
            lost_seconds=lost,
            overhead_seconds=overhead,
            startup_seconds=startup,
            queue_seconds=self.queue,
            idle_seconds=self.idle,
            first_queue_seconds=self.first_queue,
            wall_seconds=until - self.begin,
        )

    def _launch(self, time: float, launch_id: Any, job_id: Any) -> None:
        self.begin = time if self.begin is None else self.begin
        self._settle_last()
        if self.launches:
            same_job = job_id is not None and job_id == self.launches[-1].job_id
            self._pause(self.launches[-1].end, time, same_job)
        else:
            self._pause(self.begin, time, same_job=False)
            self.first_queue = self.queue
        self.waiting_since = None
        self.launches.append(_Launch(launch_id, job_id, time, sign=time))

    def _settle_last(self) -> None:
        """The steps that the latest start did after its last measurement. Only now: its word may come before those."""
        if self.launches and _is_step(reached := self.launches[-1].reached) and reached > self.position:
            self._reach(self.launches[-1], reached)

    def _pause(self, since: float, until: float, same_job: bool) -> None:
        """Between two starts: all of it in the queue for one job, else from when it was put there."""
        queued = 0.0
        if same_job:
            queued = until - since
        elif self.waiting_since is not None:
            queued = until - max(since, self.waiting_since)
        self.queue += queued
        self.idle += until - since - queued

    @staticmethod
    def _end_unspoken(launch: _Launch) -> None:
        """SLURM started the job again and this start could not say its last word: its successor did, in its place."""
        if not launch.ended_by_itself:
            launch.ended = launch.sign

    def _begin_at(self, iteration: Any) -> None:
        """A start goes on from a checkpoint: later steps are undone, and earlier ones were done, measured or not."""
        if not _is_step(iteration):
            return
        if iteration < self.position:
            self._go_back(iteration)
        elif iteration > self.position and len(self.launches) > 1:
            self._reach(self.launches[-2], iteration)
        self.position = iteration

    def _reach(self, launch: _Launch, iteration: int) -> None:
        """Steps after the last measurement of a start: as long as those before, and not longer than the start."""
        seconds, last = 0.0, self.kept[-1] if self.kept else None
        if last is not None and last.launch is launch and launch.last_record is not None:
            rate = last.seconds / (last.last - last.first)
            seconds = min((iteration - self.position) * rate, launch.end - launch.last_record.time)
        self._keep(launch, iteration, max(0.0, seconds))

    def _keep(self, launch: _Launch, iteration: int, seconds: float) -> None:
        self.kept.append(_Steps(launch, self.position, iteration, seconds))
        launch.busy += seconds
        self.position = iteration

    def _go_back(self, iteration: int) -> None:
        """Undo the steps after this one."""
        while self.kept and self.kept[-1].last > iteration:
            steps = self.kept.pop()
            undone = steps.last - max(iteration, steps.first)
            seconds = steps.seconds * (undone / (steps.last - steps.first))
            self.lost_steps += undone
            steps.launch.lost += seconds
            if steps.first < iteration:
                self.kept.append(_Steps(steps.launch, steps.first, iteration, steps.seconds - seconds))
        self.position = iteration


def _seconds(previous: Metric | None, record: Metric, position: int) -> float:
    """What the steps of a record took: its tokens at its rate where the record before it is known, else as many times
    what the last one took.
    """
    rate = record.values.get(_TOKEN_RATE, 0.0)
    try:
        if previous is not None and previous.iteration == position and rate > 0 and record.tokens > previous.tokens:
            seconds = (record.tokens - previous.tokens) / rate
        else:
            seconds = record.values.get(_STEP_SECONDS, 0.0) * (record.iteration - position)
    except OverflowError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0 else None


def _is_step(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_STEPS


def _timeline(events: EventLog, metrics: Iterable[Metric]) -> Iterator[tuple[float, Event | Metric]]:
    """Both logs as one, in the order of their times; each log keeps its own order, and starts that were refused because
    the run was held are left out: they changed nothing.
    """
    told = _never_back((event.time, event) for event in events.without_refused())
    measured = _never_back((_time_of(metric.time), metric) for metric in metrics)
    # At the same time, a measurement is the last of one start rather than the first of the next: a step takes time.
    return heapq.merge(measured, told, key=lambda entry: entry[0])


def _never_back(entries: Iterable[tuple[float | None, _Entry]]) -> Iterator[tuple[float, _Entry]]:
    latest = -math.inf
    for time, entry in entries:
        if time is not None:
            latest = max(latest, time)
            yield latest, entry


def _time_of(value: Any) -> float | None:
    """Seconds since the epoch, where it is a number that can be that."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < _END_OF_TIME else None
