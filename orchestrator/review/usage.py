"""What runs have taken of a cluster: GPU-hours by user and project, and how long they waited. From their event logs.

A launch takes its GPUs from `launched` to its end; one that never said its last word, to its last sign of life. On the
CPU a process counts as a GPU, and where nothing else ran, hours are called those of processes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.planning.hardware.devices import computing_unit
from orchestrator.review.charts.axes import plain
from orchestrator.review.charts.curves import Figure
from orchestrator.review.run_summary import RunSummary
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import (
    BY_LAUNCHER,
    Event,
    Exited,
    Launched,
    Requeued,
    Started,
    Submitted,
    Withdrawn,
)

_MOST_GPUS = 1 << 32
_MOST_DAYS = 400
_NOBODY = "unknown"


@dataclass(frozen=True)
class Launch:
    """GPUs that were taken from `begin` to `end` (seconds since the epoch); `end` is None while they are."""

    gpus: int
    begin: float
    end: float | None
    is_on_cpu: bool | None = None
    """Whether its processes have no GPUs; None where it is not known, of a start that failed before it said so."""


@dataclass(frozen=True)
class Wait:
    """A time in a scheduler's queue; `end` is None while it waits."""

    cluster: str
    begin: float
    end: float | None


@dataclass(frozen=True)
class RunUsage:
    """What one run took."""

    launches: tuple[Launch, ...] = ()
    waits: tuple[Wait, ...] = ()

    @property
    def waiting_since(self) -> float | None:
        """When it went into the queue that it is in."""
        return next((wait.begin for wait in self.waits if wait.end is None), None)


@dataclass(frozen=True)
class Share:
    """What a user or a project took within a period. `goodput` and `lost_steps`: of its runs as a whole; the goodput
    of each counts by its GPU-hours.
    """

    name: str
    gpu_hours: float
    runs: int
    launches: int
    lost_steps: int
    goodput: float | None


@dataclass(frozen=True)
class Queue:
    """Waits of a partition that ended within a period, in seconds, and those that go on."""

    name: str
    waits: int
    median: float | None
    ninetieth: float | None
    longest: float | None
    waiting: int


@dataclass(frozen=True)
class Usage:
    """What was taken from `since` to `until` (seconds since the epoch). `days`: GPU-hours by day and project.
    `processes_now`: at work on CPUs; `hours`: what its hours are called.
    """

    since: float | None
    until: float
    states: tuple[tuple[str, int], ...]
    gpus_now: int
    processes_now: int
    hours: str
    gpu_hours: float
    users: tuple[Share, ...]
    projects: tuple[Share, ...]
    queues: tuple[Queue, ...]
    days: tuple[tuple[str, Mapping[str, float]], ...]


def taken(
    events: EventLog, gpus: int, *, is_active: bool, sign: float | None = None, is_on_cpu: bool | None = None
) -> RunUsage:
    """What an event log says was taken. `gpus`, `is_on_cpu` where a start did not say what it had; `sign`: when the run
    was last heard of elsewhere. Events may be missing or torn, and clocks may go back: nothing is negative, no two
    launches overlap.
    """
    account = _Account(gpus, is_on_cpu)
    for event in events.without_refused():
        account.add(event)
    return account.close(is_active, sign)


class _Account:
    def __init__(self, gpus: int, is_on_cpu: bool | None) -> None:
        self._gpus = gpus
        self._is_on_cpu = is_on_cpu
        self._launches: list[Launch] = []
        self._waits: list[Wait] = []
        self._open: Launch | None = None
        self._launch_id: object = None
        self._waiting: tuple[str, float] | None = None
        self._cluster = "slurm"
        self._now = 0.0

    def add(self, event: Event) -> None:
        if event.time is None:
            return
        latest = self._now
        self._now = max(self._now, event.time)
        match event:
            case Requeued(by=by) if by == BY_LAUNCHER:  # in no queue: its launcher waits
                self._end(latest)
            case Submitted() | Requeued():
                self._cluster = (event.cluster if isinstance(event, Submitted) else None) or self._cluster
                self._end(latest)
                self._waiting = self._cluster, self._now
            case Withdrawn():
                self._waiting = None
            case Launched():
                self._end(latest)
                self._stop_waiting()
                self._launch_id = event.launch_id
                self._open = Launch(self._gpus, self._now, None, self._is_on_cpu)
            case Started(world_size=int(size)) if self._open is not None and 0 < size < _MOST_GPUS:
                self._gpus = size
                if event.device is not None:
                    self._is_on_cpu = computing_unit(event.device) != "GPU"
                self._open = replace(self._open, gpus=self._gpus, is_on_cpu=self._is_on_cpu)
            case Exited() if event.launch_id == self._launch_id:
                self._end(self._now)

    def close(self, is_active: bool, sign: float | None) -> RunUsage:
        if self._open is not None and is_active:
            self._launches.append(self._open)
        else:
            self._end(max(self._now, sign or 0.0))
        if self._waiting is not None:
            cluster, begin = self._waiting
            if is_active:
                self._waits.append(Wait(cluster, begin, None))
        return RunUsage(tuple(self._launches), tuple(self._waits))

    def _end(self, moment: float) -> None:
        if self._open is not None:
            self._launches.append(replace(self._open, end=max(moment, self._open.begin)))
        self._open = None

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waits.append(Wait(*self._waiting, self._now))
        self._waiting = None


class UsageLog:
    """What runs took, kept in memory: a log is read again only when it grew."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[object, RunUsage]] = {}

    def of(self, runs: Iterable[RunSummary]) -> list[tuple[RunSummary, RunUsage]]:
        """What each run took; nothing for one whose log cannot be read. Runs that are not asked for are forgotten."""
        found = [(run, *self._of(run)) for run in runs]
        self._known = {run.run.path: (signature, its) for run, signature, its in found}
        return [(run, its) for run, _, its in found]

    def _of(self, run: RunSummary) -> tuple[object, RunUsage]:
        signature = (_changed(run.run.events_file), run.is_active, run.state)
        known = self._known.get(run.run.path)
        if known is not None and known[0] == signature:
            return known
        sign = _changed(run.run.metrics_file)[0]
        try:
            is_on_cpu = {"cpu": True, "cuda": False}.get(run.spec.get("runtime.device", ""))
            found = taken(
                run.run.events(), gpus_of(run), is_active=run.is_active, sign=sign or None, is_on_cpu=is_on_cpu
            )
        except (OSError, ArithmeticError, LookupError, TypeError, ValueError):
            found = RunUsage()
        return signature, found


def usage(runs: Sequence[tuple[RunSummary, RunUsage]], since: float | None, until: float) -> Usage:
    """What runs took in a period. The GPU-hours of users, of projects and of days add up to the same."""
    begin = -math.inf if since is None else since
    days: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for run, its in runs:
        for launch in its.launches:
            for day, hours in _by_day(launch, begin, until):
                days[day][project_of(run)] += hours
    launches = [launch for _, its in runs for launch in its.launches]
    now = [launch for launch in launches if launch.end is None]
    inside = [launch for launch in launches if _is_in(launch, begin, until)]
    kinds = {launch.is_on_cpu for launch in inside} - {None}
    return Usage(
        since=since,
        until=until,
        states=tuple(sorted(Counter(run.state for run, _ in runs).items(), key=lambda each: (-each[1], each[0]))),
        gpus_now=sum(launch.gpus for launch in now if not launch.is_on_cpu),
        processes_now=sum(launch.gpus for launch in now if launch.is_on_cpu),
        hours="Process hours" if kinds == {True} else "GPU-hours",
        gpu_hours=math.fsum(_hours(launch, begin, until) for launch in launches),
        users=_shares(runs, lambda run: run.user or _NOBODY, begin, until),
        projects=_shares(runs, project_of, begin, until),
        queues=_queues(runs, begin, until),
        days=tuple(sorted((day, dict(hours)) for day, hours in days.items())),
    )


def project_of(run: RunSummary) -> str:
    """What a run is counted under: the account that is charged, else `tracking.experiment`, the sweep, or the job."""
    for key in ("launch.account", "tracking.experiment"):
        value = run.spec.get(key)
        if value not in (None, "", "null"):
            return str(value)
    return run.sweep or run.run.name


def gpus_of(run: RunSummary) -> int:
    """GPUs that a run asks for, by its spec; on the CPU, processes."""

    def number(key: str) -> int | None:
        text = run.spec.get(key, "")
        return int(text) if text.isdecimal() and 0 < int(text) < 1 << 32 else None

    per_node = number("launch.gpus_per_node")
    if per_node is not None:
        return (number("launch.nodes") or 1) * per_node
    kinds = ("tensor_model", "pipeline_model", "context", "data")
    return math.prod(number(f"parallelism.{kind}_parallel_size") or 1 for kind in kinds)


def days_figure(found: Usage) -> Figure:
    """GPU-hours of each day, by project."""
    projects = [share.name for share in found.projects]
    days = [day for day, _ in found.days][-_MOST_DAYS:]
    hours = dict(found.days)
    data = [
        {"type": "bar", "name": plain(name), "x": days, "y": [hours[day].get(name, 0.0) for day in days]}
        for name in projects
        if any(hours[day].get(name) for day in days)
    ]
    layout = {
        "title": {"text": f"{found.hours} by day and project"},
        "barmode": "stack",
        "xaxis": {"type": "category" if len(days) < 15 else "date"},
        "yaxis": {"title": {"text": found.hours}, "rangemode": "tozero"},
    }
    return {"data": data, "layout": layout}


def _shares(
    runs: Sequence[tuple[RunSummary, RunUsage]], name_of: Callable[[RunSummary], str], begin: float, until: float
) -> tuple[Share, ...]:
    groups: defaultdict[str, list[tuple[RunSummary, RunUsage]]] = defaultdict(list)
    for run, its in runs:
        if any(_is_in(launch, begin, until) for launch in its.launches):
            groups[name_of(run)].append((run, its))
    found = []
    for name, members in groups.items():
        inside = [launch for _, its in members for launch in its.launches if _is_in(launch, begin, until)]
        found.append(
            Share(
                name=name,
                gpu_hours=math.fsum(_hours(launch, begin, until) for launch in inside),
                runs=len(members),
                launches=len(inside),
                lost_steps=sum(run.lost_steps or 0 for run, _ in members),
                goodput=_goodput(members, until),
            )
        )
    return tuple(sorted(found, key=lambda share: (-share.gpu_hours, share.name)))


def _goodput(members: Sequence[tuple[RunSummary, RunUsage]], until: float) -> float | None:
    known = [
        (run.goodput, math.fsum(_hours(launch, -math.inf, until) for launch in its.launches))
        for run, its in members
        if run.goodput is not None
    ]
    hours = math.fsum(hours for _, hours in known)
    return math.fsum(fraction * hours for fraction, hours in known) / hours if hours > 0 else None


def _queues(runs: Sequence[tuple[RunSummary, RunUsage]], begin: float, until: float) -> tuple[Queue, ...]:
    ended: defaultdict[str, list[float]] = defaultdict(list)
    waiting: Counter[str] = Counter()
    for run, its in runs:
        for wait in its.waits:
            partition = run.spec.get("launch.partition")
            name = wait.cluster if partition in (None, "null") else f"{wait.cluster}, {partition}"
            if wait.end is None:
                waiting[name] += 1
            elif begin <= wait.end <= until:
                ended[name].append(wait.end - wait.begin)
    found = []
    for name in sorted({*ended, *waiting}):
        waits = sorted(ended[name])
        ninetieth = waits[math.ceil(0.9 * len(waits)) - 1] if waits else None
        median = statistics.median(waits) if waits else None
        found.append(Queue(name, len(waits), median, ninetieth, waits[-1] if waits else None, waiting[name]))
    return tuple(found)


def _is_in(launch: Launch, begin: float, until: float) -> bool:
    return launch.begin <= until and (launch.end is None or launch.end >= begin)


def _hours(launch: Launch, begin: float, until: float) -> float:
    end = until if launch.end is None else min(launch.end, until)
    return launch.gpus * max(0.0, end - max(launch.begin, begin)) / 3600


def _by_day(launch: Launch, begin: float, until: float) -> Iterable[tuple[str, float]]:
    """GPU-hours of a launch by the days of this machine's clock."""
    start = max(launch.begin, begin)
    end = until if launch.end is None else min(launch.end, until)
    while start < end:
        at = time.localtime(start)
        midnight = time.mktime((at.tm_year, at.tm_mon, at.tm_mday + 1, 0, 0, 0, 0, 0, -1))
        part = min(end, midnight) if midnight > start else end
        yield time.strftime("%Y-%m-%d", at), launch.gpus * (part - start) / 3600
        start = part


def _changed(path: Path) -> tuple[float, int]:
    try:
        found = path.stat()
    except OSError:
        return 0.0, 0
    return found.st_mtime, found.st_size
