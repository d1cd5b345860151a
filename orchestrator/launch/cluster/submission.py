"""Submitting a run to a SLURM cluster, and what its events say of its jobs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from orchestrator.executors.slurm.client import Warn, submit
from orchestrator.launch.cluster.preparation import DataJob, data_job
from orchestrator.launch.cluster.snapshot import take_snapshot
from orchestrator.launch.scripts.render import RUNTIME_MODULE
from orchestrator.launch.scripts.sbatch import Place, render_sbatch
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import Exited, Launched, Requeued, Submitted, Withdrawn
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec


@dataclass(frozen=True)
class SlurmRun:
    """What the event log says of a run's latest job."""

    job_id: str
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
        """Whether the run said itself that this job has nothing left to do. What SLURM ended may be queued again."""
        if self.withdrawn:
            return True
        return self.exited is not None and self.requeued is None and self.exited.cause != "cancelled"

    @property
    def unsettled(self) -> tuple[str, ...]:
        """Ids of its jobs that only the scheduler can tell of: its own, and until it starts that of its data."""
        if self.is_over:
            return ()
        return (self.job_id, *([self.data.job_id] if self.data is not None and not self.launches else []))


def latest_job(events: EventLog) -> SlurmRun | None:
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
    return SlurmRun(
        job_id=job_id,
        cluster=next((each.cluster for each in mine.all(Submitted) if each.cluster), "slurm"),
        submitted=mine[0].time or 0.0,
        launches=launches,
        exited=of_last.first(Exited),
        requeued=of_last.first(Requeued),
        withdrawn=isinstance(mine[-1], Withdrawn),
        data=data_job(events, submitted.data_job_id if submitted else None),
    )


def submit_run(
    run: RunDir,
    job: JobSpec,
    cluster: ClusterSpec,
    place: Place,
    *,
    from_scratch: bool = False,
    after: tuple[str, ...] = (),
    data_job_id: str | None = None,
    module: str = RUNTIME_MODULE,
    warn: Warn = lambda message: None,
) -> str:
    """Write the run's batch script and submit it; returns the job id. `after`: ids of jobs that must succeed before;
    `data_job_id`: of the one that makes its data, which must as well.

    Raises UserError when SLURM refuses what is asked for and SchedulerError when it cannot be asked; the run stays as
    it was then.
    """
    run.logs.mkdir(exist_ok=True)
    before = (*after, data_job_id) if data_job_id else after
    script = render_sbatch(job, cluster, place, from_scratch=from_scratch, after=before, module=module)
    write_atomically(run.batch_script, script)
    run.stop_file.unlink(missing_ok=True)
    job_id = submit(run.batch_script, warn=warn)
    run.append(Submitted(job_id=job_id, cluster=cluster.name, data_job_id=data_job_id or None))
    return job_id


def place_of(run: RunDir, job: JobSpec, *, copy: bool = True) -> Place:
    """Where a run that is submitted from here works: here, or in a copy of the code if the job asks for one. Without
    `copy` none is made, as for a dry run.
    """
    if copy and job.launch.snapshot:
        snapshot = take_snapshot(run)
        return Place(run, snapshot.working_directory, sys.executable, snapshot.python_path)
    return Place(run, Path.cwd(), sys.executable)
