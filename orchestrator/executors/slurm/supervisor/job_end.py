"""After an incarnation has ended: its last event, and the way back into the queue."""

from __future__ import annotations

import os
from contextlib import suppress

from orchestrator.errors import OrchestratorError
from orchestrator.executors.slurm.requeue_command import earlier_ends, requeue_later
from orchestrator.executors.slurm.supervisor.exit_classification import unspoken_end
from orchestrator.executors.slurm.supervisor.slurm_job import SlurmJob
from orchestrator.launch.notifications.process import longest, tell_now
from orchestrator.launch.processes.launch_processes import REQUEUE_CODE_VARIABLE
from orchestrator.launch.requeue_policy import Decision, decide, unless_withdrawn
from orchestrator.quantities import timestamp
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import (
    Event,
    Exited,
    ExitedOnCluster,
    GaveUp,
    Launched,
    Requeued,
    RequeueFailed,
    Withdrawn,
)
from orchestrator.run_directory.exits.causes import Exit, by_word_of_the_ranks
from orchestrator.run_directory.lease import supersedes
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.tracking.follower import send_the_end

SECONDS_TO_SEND_THE_END = 30.0
_SECONDS_BEFORE_A_REQUEUE = 10.0
"""How long it may be told that a run goes back into the queue, before it does."""


def is_stale(run: RunDir, launch_id: str) -> bool:
    """Whether a later start of the run has begun: then that one has the last word."""
    newest = run.events().last_launch
    return newest is not None and newest.launch_id != launch_id


def conclude(
    run: RunDir, job: JobSpec, slurm: SlurmJob, end: Exit, code: int | None, asked_by: str | None = None
) -> Decision:
    """Write down how this incarnation ended, decide what comes next, and do it. `asked_by`: the person who has asked
    for a stop, and wants no further start, whatever the end.

    A stale incarnation writes nothing and asks for nothing. Going back into the queue is written down first: SLURM
    ends this job's processes as soon as it is asked. It is written together with the end, which would otherwise look
    like that of the run for a moment.
    """
    if is_stale(run, slurm.launch_id):
        return Decision(False, "a newer start of this run has taken over")
    exited = exit_event(slurm.launch_id, end, code)
    decision = unless_withdrawn(decide(job.launch, end, EventLog((*run.events(), exited))), asked_by)
    if end.cause == "requeued":
        run.append(exited, requeue_event(slurm, slurm.launch_id, Decision(True, end.cause), by="slurm"))
    elif decision.requeue:
        run.append(exited, requeue_event(slurm, slurm.launch_id, decision, by="orchestrator"))
        requeue(run, job, slurm, decision)
    elif decision.withdrawn_by is not None:
        withdrawn = Withdrawn(launch_id=slurm.launch_id, job_id=slurm.job_id, by=decision.withdrawn_by)
        run.append(exited, withdrawn)
    elif end.code and end.cause not in ("stopped", "cancelled"):
        run.append(exited, GaveUp(launch_id=slurm.launch_id, cause=end.cause, reason=decision.reason))
    else:
        run.append(exited)
    if not decision.requeue:
        tell_now(run, job, slurm.launch_id, longest(job))
        if end.cause == "cancelled" and job.tracking.trackers:  # its follower was ended with its ranks
            send_the_end(run, SECONDS_TO_SEND_THE_END)
    return decision


def account_for_previous(run: RunDir, slurm: SlurmJob) -> None:
    """Write the ends of earlier incarnations of this job that could not do so themselves: SLURM started it again."""
    launched: list[str] = []
    ended: set[str] = set()
    queued: set[str] = set()
    for known in run.events():
        launch_id = str(known.of_launch)
        match known:
            case Launched() if supersedes(slurm.launch_id, launch_id):
                launched.append(launch_id)
            case Exited():
                ended.add(launch_id)
            case Requeued():
                queued.add(launch_id)
    for launch_id in launched:
        cause, unspoken = "cancelled", list[Event]()
        if launch_id not in ended:
            end = unspoken_end(by_word_of_the_ranks(run, launch_id), earlier_ends(slurm.job_id))
            cause = end.cause
            unspoken.append(exit_event(launch_id, end, None))
        if launch_id not in queued:
            unspoken.append(requeue_event(slurm, launch_id, Decision(True, cause), by="slurm"))
        if unspoken:
            run.append(*unspoken)


def exit_event(launch_id: str, end: Exit, code: int | None) -> Exited:
    """The `exited` event of a launch."""
    return ExitedOnCluster(
        launch_id=launch_id,
        code=code,
        cause=end.cause,
        message=end.message,
        iteration=end.iteration,
        evidence=end.evidence,
        node=end.node,
    )


def left_to_caller(decision: Decision) -> int | None:
    """The exit code that asks whoever started this process to put the job back into the queue; None where nobody
    offered to, or where there is more to it than that.
    """
    code = os.environ.get(REQUEUE_CODE_VARIABLE)
    alone = not decision.requeue or decision.delay or decision.exclude
    return None if code is None or alone else int(code)


def requeue(run: RunDir, job: JobSpec, slurm: SlurmJob, decision: Decision) -> None:
    """Put the job back into the queue, to start after the decision's delay and not on the nodes it excludes."""
    tell_now(run, job, slurm.launch_id, _SECONDS_BEFORE_A_REQUEUE)
    if left_to_caller(decision) is not None:
        return
    try:
        requeue_later(slurm.job_id, slurm.restarts, decision.delay, decision.exclude)
    except OrchestratorError as error:
        # SLURM may have done it by itself in the meantime: its word on the job is what counts from here on.
        run.append(RequeueFailed(launch_id=slurm.launch_id, job_id=slurm.job_id, message=str(error)))
        say(f"the job could not be requeued: {error}")
        tell_now(run, job, slurm.launch_id, longest(job))


def requeue_event(slurm: SlurmJob, launch_id: str, decision: Decision, by: str) -> Requeued:
    """The `requeued` event after the end of a launch."""
    return Requeued(
        launch_id=launch_id,
        job_id=slurm.job_id,
        cause=decision.reason,
        by=by,
        exclude=decision.exclude,
        delay=decision.delay,
    )


def say(message: str) -> None:
    """A line in the job's output; a full disk or a reader that has gone must not keep a run from coming back."""
    with suppress(OSError):
        print(f"=== {timestamp()} {message}", flush=True)
