"""The protocol of an executor, which runs are submitted to, and finding one by its name. `launch.executor: ssh` is none
of them: the launcher itself starts such a run on its hosts.

Another package adds an executor: a class with these methods, and an entry point in the group `orchestrator.executors`
with the name that `launch.executor` of a job gives.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

from orchestrator import plugins
from orchestrator.errors import OrchestratorError, SchedulerError, UserError
from orchestrator.run_directory.events.types import Submitted
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import RUNTIME_MODULE
from orchestrator.spec.sections.launch import ON_HOSTS

if TYPE_CHECKING:  # which take longer to import than all else that commands on runs need
    from orchestrator.data.source_survey import Source
    from orchestrator.spec.cluster import ClusterSpec
    from orchestrator.spec.job import JobSpec

SHIPPED: Mapping[str, str] = {"slurm": "orchestrator.executors.slurm.executor:SlurmExecutor"}
BY_LAUNCHER = ("local", ON_HOSTS)
"""What the launcher starts from this machine: there is nothing to submit."""
DEFAULT = "slurm"
"""Of jobs that are submitted and name none, and of those that were before there were others."""

Warn = Callable[[str], object]


@dataclass(frozen=True)
class JobState:
    """What an executor says about a job. Times are seconds since the epoch."""

    job_id: str
    phase: Literal["waiting", "running", "over"]
    state: str
    """Its own word for it."""
    reason: str | None = None
    """Why it waits, or why it ended so."""
    nodes: tuple[str, ...] = ()
    exit_code: int | None = None
    """Of a job that is over, as a shell says it: 128 + N after signal N."""
    restarts: int = 0
    """How often it was put back into the queue."""
    submitted: float | None = None
    """When it came into the queue; for a job that was put back, the last time."""
    started: float | None = None
    ended: float | None = None
    never_starts: bool = False
    """Whether no waiting removes the reason why it waits."""
    cause: str | None = None
    """Why it ended, as run_directory/exits/causes.py calls it, where the executor ended it."""
    succeeded: bool = False
    """Whether it is over because it had done its work."""
    says: str = ""
    """Its last word on it, for a sentence: SLURM says TIMEOUT."""

    @property
    def is_over(self) -> bool:
        """Whether it will not go on by itself."""
        return self.phase == "over"

    @property
    def is_waiting(self) -> bool:
        """Whether it has not begun, or waits to begin again."""
        return self.phase == "waiting"

    @property
    def has_failed(self) -> bool:
        """Whether it is over, and not because it had done its work."""
        return self.is_over and not self.succeeded


@dataclass(frozen=True)
class Place:
    """Where a submitted run works: absolute folders on a file system that all nodes share, and the Python there."""

    run: RunDir
    working_directory: Path
    python: str
    python_path: str = ""
    """Goes before everything else on PYTHONPATH: the folders of a snapshot."""


@dataclass(frozen=True)
class Start:
    """A run that an executor is to start."""

    job: JobSpec
    place: Place
    cluster: ClusterSpec | None = None
    """The profile of its cluster, for executors that have some."""
    from_scratch: bool = False
    after: tuple[str, ...] = ()
    """Ids of jobs that must have succeeded before."""
    missing: Sequence[Source] = ()
    """Data sets that are to be made before it starts."""
    module: str = RUNTIME_MODULE

    @property
    def run(self) -> RunDir:
        """The directory of the run."""
        return self.place.run

    @property
    def where(self) -> str:
        """What the cluster is called."""
        return self.cluster.name if self.cluster is not None else (self.job.launch.executor or DEFAULT)


@dataclass(frozen=True)
class Scripts:
    """What an executor is given to run: the run's own script, and that of the job that makes its data."""

    run: str
    data: str | None = None


@dataclass(frozen=True)
class SubmittedIds:
    """Ids of the jobs of a run that was submitted: its own, and that of the job that makes its data."""

    job_id: str
    data_job_id: str | None = None


class Executor(Protocol):
    """Starts runs as jobs. It raises UserError for what it refuses, and SchedulerError when it does not answer."""

    name: str
    has_clusters: bool
    """Whether its jobs need a cluster profile."""

    def check(self) -> None:
        """Raises where jobs cannot be submitted from this machine."""

    def describe(self, start: Start) -> str:
        """What is going to be asked for, for a person."""

    def render(self, start: Start) -> Scripts:
        """The scripts of a start, a function of its argument; nothing is written. `after` and data jobs whose ids are
        not known yet stand there by a name.
        """

    def submit(self, start: Start, warn: Warn) -> SubmittedIds:
        """Submit a run. Where it raises, the run is as before; PerhapsSubmitted says that the job may be there
        nevertheless.
        """

    def states(self, job_ids: Iterable[str], warn: Warn) -> dict[str, JobState]:
        """What is known about many jobs, asked for at once; those that are not known are absent."""

    def cancel(self, job_ids: Iterable[str]) -> None:
        """End jobs, or take them out of the queue. One that is over stays so."""


def submit(chosen: Executor, start: Start, warn: Warn = lambda message: None) -> SubmittedIds:
    """Submit a run to an executor, and write that down in its event log. Raises what the executor raises."""
    start.run.logs.mkdir(exist_ok=True)
    start.run.stop_file.unlink(missing_ok=True)
    ids = chosen.submit(start, warn)
    asked = start.job.launch.executor
    named = None if asked == DEFAULT else asked  # so that lines of jobs on SLURM stay as they were
    start.run.append(Submitted(job_id=ids.job_id, cluster=start.where, executor=named, data_job_id=ids.data_job_id))
    return ids


def states_of(name: str, job_ids: Iterable[str], warn: Warn = lambda message: None) -> dict[str, JobState]:
    """What an executor says of jobs. Raises UserError and SchedulerError, whatever it raises itself."""
    try:
        return executor(name).states(job_ids, warn)
    except OrchestratorError:
        raise
    except Exception as error:  # of another package's code: it is not to take what is known of other runs with it
        raise SchedulerError(f"executor {name}: {type(error).__name__}: {error}", code="failed_executor") from error


def is_started_here(job: JobSpec) -> bool:
    """Whether the job says that the launcher of this machine starts it, in place of an executor."""
    return job.launch.executor in BY_LAUNCHER


def executor_of(job: JobSpec) -> Executor:
    """The executor that a job is submitted to. Raises UserError for a name that nothing has."""
    return executor(job.launch.executor or DEFAULT)


def executor(name: str) -> Executor:
    """The executor of that name: a shipped one, or one of an installed package.

    Raises UserError where there is none, or where its package cannot be loaded.
    """
    if name in SHIPPED:
        module, _, attribute = SHIPPED[name].partition(":")
        return cast(Executor, getattr(importlib.import_module(module), attribute)())
    if name in BY_LAUNCHER:
        raise UserError(
            f"launch.executor: {name} starts runs from this machine, where no scheduler has them",
            code="executor_without_scheduler",
        )
    try:
        return cast(Executor, plugins.load(plugins.EXECUTORS, name)())
    except UserError as error:
        raise UserError(
            f"launch.executor: {error}; this package has {', '.join((*SHIPPED, *BY_LAUNCHER))}", code="unknown_executor"
        ) from error
