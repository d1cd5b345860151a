"""What the event log of a run says of its jobs: that which trains it, and that which makes its data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.files.stored_files import NotStoredError
from orchestrator.launch.executor_protocol import DEFAULT, JobState
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import (
    DataFailed,
    DataPrepared,
    Exited,
    Launched,
    Requeued,
    Submitted,
    Withdrawn,
)
from orchestrator.run_directory.exits.causes import Exit
from orchestrator.run_directory.rundir import RunDir

_EVIDENCE_BYTES = 16 << 10
_EVIDENCE_LINES = 3


@dataclass(frozen=True)
class DataJob:
    """What the event log says of the job that makes a run's data."""

    job_id: str
    is_done: bool
    """Whether it said that all is there."""
    failure: str | None
    """Why it could not, where it said so."""


def data_job(events: EventLog, job_id: str | None) -> DataJob | None:
    """The data job of that id; None without an id."""
    if job_id is None:
        return None
    mine = EventLog(event for event in events if event.of_job == job_id)
    failed = mine.first(DataFailed)
    return DataJob(job_id, mine.first(DataPrepared) is not None, None if failed is None else str(failed.message))


@dataclass(frozen=True)
class SubmittedJob:
    """What the event log says of a run's latest job."""

    job_id: str
    executor: str
    """The name of the executor that has it."""
    cluster: str
    submitted: float
    launches: tuple[Launched, ...]
    """Its launches."""
    exited: Exited | None
    """The end of the last launch, where it was written."""
    requeued: Requeued | None
    """Its way back into the queue after that end."""
    withdrawn: bool
    """Whether a person took it out of the queue."""
    data: DataJob | None = None
    """The job that makes its data, when it was submitted after one."""

    @property
    def is_over(self) -> bool:
        """Whether the run said itself that this job has nothing left to do. One that the scheduler ended may be queued
        again.
        """
        if self.withdrawn:
            return True
        return self.exited is not None and self.requeued is None and self.exited.cause != "cancelled"

    @property
    def unsettled(self) -> tuple[str, ...]:
        """Ids of its jobs that only the scheduler can tell of: its own, and until it starts that of its data."""
        if self.is_over:
            return ()
        return (self.job_id, *([self.data.job_id] if self.data is not None and not self.launches else []))


def latest_job(events: EventLog) -> SubmittedJob | None:
    """The newest job of a run, if its newest start was one on a cluster."""
    starts = [
        event for event in events if isinstance(event, Launched) or (isinstance(event, Submitted) and event.job_id)
    ]
    job_id = starts[-1].of_job if starts else None
    if job_id is None:
        return None
    mine = EventLog(event for event in events if event.of_job == job_id)
    launches = tuple(mine.all(Launched))
    of_last = events.of_launch(launches[-1].launch_id) if launches else EventLog()
    submitted = mine[0] if isinstance(mine[0], Submitted) else None
    return SubmittedJob(
        job_id=job_id,
        executor=next((each.executor for each in reversed(mine.all(Submitted))), None) or DEFAULT,
        cluster=next((each.cluster for each in mine.all(Submitted) if each.cluster), "slurm"),
        submitted=mine[0].time or 0.0,
        launches=launches,
        exited=of_last.first(Exited),
        requeued=of_last.first(Requeued),
        withdrawn=isinstance(mine[-1], Withdrawn),
        data=data_job(events, submitted.data_job_id if submitted else None),
    )


def waiting_for(data: DataJob, known: JobState | None) -> str:
    """Why a run waits whose data is being made."""
    if known is None or known.is_over:
        return f"waits for its data (job {data.job_id})"
    waits = f" ({known.reason})" if known.is_waiting and known.reason else ""
    return f"waits for its data: job {data.job_id} is {known.state.lower()}{waits}"


def failed_preparation(run: RunDir, data: DataJob, known: JobState | None, *, forgotten: bool) -> Exit | None:
    """The end of a run whose data job failed, by its own word or the scheduler's; None while it has not. `forgotten`:
    the scheduler knows nothing of the run's own job any more.
    """
    if data.is_done:
        return None
    if data.failure is not None:
        said = data.failure.splitlines()[0] if data.failure else "no reason was given"
    elif known is None and forgotten:
        said = "the scheduler no longer knows how it ended"
    elif known is not None and known.has_failed:
        said = known.says + (f", exit code {known.exit_code}" if known.exit_code else "")
    else:
        return None
    message = f"job {data.job_id}: {said}; see {run.data_log.relative_to(run.path)}"
    return replace(Exit.of("data", message, None), evidence=_last_lines(run))


def _last_lines(run: RunDir) -> tuple[str, ...]:
    try:
        with run.open(run.data_log) as log:
            log.seek(max(0, log.seek(0, 2) - _EVIDENCE_BYTES))
            lines = log.read(_EVIDENCE_BYTES).decode(errors="replace").splitlines()
    except (FileNotFoundError, NotStoredError):
        return ()
    return tuple(f"{run.data_log.name}: {line.strip()}" for line in lines if line.strip())[-_EVIDENCE_LINES:]
