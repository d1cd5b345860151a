"""Stopping a run, wherever it is: in a queue, on its way, or with a launcher that does not react."""

from __future__ import annotations

import time
from typing import NamedTuple

from orchestrator.api.starts.reporter import Reporter
from orchestrator.api.starts.run_sentences import label
from orchestrator.errors import JobError
from orchestrator.launch.executor_protocol import executor
from orchestrator.launch.notifications.process import tell_of_withdrawn
from orchestrator.launch.processes.launch_processes import end_processes
from orchestrator.launch.processes.stop_request import ended_by_force, request_stop
from orchestrator.launch.states.run_states import RunStatus, status_of
from orchestrator.launch.states.submitted_job import SubmittedJob
from orchestrator.run_directory.events.types import Exited, Withdrawn
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import load_resolved
from orchestrator.tracking.follower import send_the_end

SECONDS_FOR_THE_LAUNCHER = 10.0
SECONDS_BETWEEN_QUESTIONS = 2.0


class Stop(NamedTuple):
    """What came of asking a run to stop."""

    status: RunStatus
    was_live: bool
    has_ended: bool
    """Whether its end was waited for."""


def stop(run: RunDir, reporter: Reporter, *, now: bool, wait: bool, by: str) -> Stop:
    """Have a run save after its current step and end, or end at once (`now`) with the checkpoints that it has. What
    waits in a queue is taken out of it. `by`: who asks. Raises JobError where its processes cannot be reached.
    """
    status = status_of(run)
    was_live = status.is_active
    if status.state == "queued" and status.job is not None:
        return Stop(_withdraw(run, status.job), was_live, True)
    if was_live:
        request_stop(run, by, at_once=now)
        if wait:
            reporter.say(f"run {label(run)} was asked to stop{'' if now else ' and save'}; waiting for it")
            status = _wait(run, now, by)
            if status.state == "queued" and status.job is not None:  # it was on its way back when it was asked
                status = _withdraw(run, status.job)
    return Stop(status, was_live, wait)


def _withdraw(run: RunDir, job: SubmittedJob) -> RunStatus:
    """Take the run's job out of the queue."""
    executor(job.executor).cancel(job.unsettled)
    run.append(Withdrawn(job_id=job.job_id, by="orchestrator cancel"))
    tell_of_withdrawn([run])
    return status_of(run)


def _wait(run: RunDir, now: bool, by: str) -> RunStatus:
    asked = time.monotonic()
    while (status := status_of(run)).is_live:
        if now and time.monotonic() - asked > SECONDS_FOR_THE_LAUNCHER:
            if status.job is None:
                _end_without_the_launcher(run, status, by)
                return status_of(run)
            executor(status.job.executor).cancel([status.job.job_id])
        time.sleep(0.2 if status.job is None else SECONDS_BETWEEN_QUESTIONS)
    return status


def _end_without_the_launcher(run: RunDir, status: RunStatus, by: str) -> None:
    """The launcher did not react: end the processes from here, if they are here, and say so in its place."""
    if status.launch_id is None or not end_processes(status.launch_id):
        where = f" on {status.holder.process.host}" if status.holder else ""
        raise JobError(
            f"run {label(run)} did not end, and its processes are not on this machine: "
            f"end the ones with ORCHESTRATOR_LAUNCH_ID={status.launch_id}{where}",
            code="run_did_not_end",
        )
    last = run.events().last_launch
    if last is not None and last.exited is None:
        end = ended_by_force(by, status.iteration)
        run.append(
            Exited(
                launch_id=status.launch_id,
                code=None,
                cause=end.cause,
                message=end.message,
                iteration=end.iteration,
                evidence=(),
            )
        )
    _send_the_end(run)


def _send_the_end(run: RunDir) -> None:
    """The trackers' too: whoever sends to them while it runs is gone."""
    if load_resolved(run.resolved()).tracking.trackers:
        send_the_end(run)
