"""What state a run on a cluster is in: its own word where it had one, else the scheduler's, else its lease's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.errors import OrchestratorError
from orchestrator.executors.slurm.client import JobState, job_states
from orchestrator.launch.cluster.preparation import failed_preparation, waiting_for
from orchestrator.launch.cluster.submission import SlurmRun
from orchestrator.launch.states.state_words import (
    SECONDS_TO_TAKE_THE_LEASE,
    State,
    state_after,
    withdrawn_end,
    working_state,
    written_end,
)
from orchestrator.run_directory.exits.causes import Exit, by_word_of_the_ranks
from orchestrator.run_directory.lease import Holder
from orchestrator.run_directory.rundir import RunDir

_DEPENDENCY = "DependencyNeverSatisfied"
_NEVER = ("PartitionTimeLimit", "PartitionNodeLimit", _DEPENDENCY, "BadConstraints")
"""Reasons of SLURM that no waiting removes."""
_WAITED = {
    _DEPENDENCY: "the run that it waited for did not complete",
    "Dependency": "while it waited for another run",  # which sacct says of both, that end and a person's scancel
}
_CAUSES = {
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "OUT_OF_MEMORY": "host_out_of_memory",
    "CANCELLED": "cancelled",
}


@dataclass(frozen=True)
class SchedulerReport:
    """What the scheduler knows of jobs; `trouble` in one line when it could not be asked."""

    jobs: Mapping[str, JobState]
    trouble: str | None = None


def ask_the_scheduler(job_ids: Iterable[str]) -> SchedulerReport:
    """What the scheduler says of these jobs; nothing is asked for none of them."""
    wanted = list(job_ids)
    if not wanted:
        return SchedulerReport({})
    troubles: list[str] = []
    try:
        return SchedulerReport(job_states(wanted, troubles.append), troubles[0] if troubles else None)
    except OrchestratorError as error:
        return SchedulerReport({}, str(error))


def state_on_cluster(
    run: RunDir, job: SlurmRun, holder: Holder | None, word: SchedulerReport
) -> tuple[State, Exit | None, str | None]:
    """State, end and what else there is to say of a run whose latest start was a job."""
    if job.withdrawn:
        return "cancelled", withdrawn_end(written_end(job.exited) if job.exited is not None else None), None
    if job.is_over and job.exited is not None:
        end = written_end(job.exited)
        return state_after(end.cause), end, None
    without_data = _end_without_data(run, job, word)
    if without_data is not None:
        return state_after(without_data.cause), without_data, None
    known = word.jobs.get(job.job_id)
    if known is None:
        return _by_the_run_itself(run, job, holder, word.trouble)
    where = f"job {job.job_id} on {job.cluster}"
    if known.is_waiting:
        if job.data is not None and not job.data.is_done and not job.launches:
            return "queued", None, f"{where}, {waiting_for(job.data, word.jobs.get(job.data.job_id))}"
        never = ": it will never start like this, cancel it" if known.reason in _NEVER else ""
        return "queued", None, where + (f", {known.reason}{never}" if known.reason else "")
    if not known.is_over:
        return working_state(run), None, where
    end = _unspoken_end(run, job, known)
    return state_after(end.cause), end, None


def _end_without_data(run: RunDir, job: SlurmRun, word: SchedulerReport) -> Exit | None:
    """The end of a job that never started because its data could not be made."""
    if job.data is None or job.launches:
        return None
    forgotten = word.trouble is None and job.job_id not in word.jobs
    return failed_preparation(run, job.data, word.jobs.get(job.data.job_id), forgotten=forgotten)


def _by_the_run_itself(
    run: RunDir, job: SlurmRun, holder: Holder | None, trouble: str | None
) -> tuple[State, Exit | None, str | None]:
    """For a job that the scheduler says nothing of."""
    reason = f"job {job.job_id} on {job.cluster}, as far as the run directory tells" + (
        f" ({trouble})" if trouble else ""
    )
    if holder is not None and holder.live:
        return working_state(run), None, reason
    if job.exited is not None and job.requeued is None:
        end = written_end(job.exited)
        return state_after(end.cause), end, None
    if trouble and (not job.launches or job.requeued is not None):
        return "queued", None, reason
    started = float(job.launches[-1].time or 0.0) if job.launches else job.submitted
    if trouble and time.time() - started < SECONDS_TO_TAKE_THE_LEASE:
        return working_state(run), None, reason
    end = _word_of_the_ranks(run, job) or Exit.of("lost", "the scheduler no longer knows its job", None)
    return state_after(end.cause), end, None


def _unspoken_end(run: RunDir, job: SlurmRun, known: JobState) -> Exit:
    """The end of a job that is over, of which the run itself has not said the last word."""
    cause = _CAUSES.get(known.state)
    iteration = job.exited.iteration if job.exited is not None else None
    if cause is not None:
        nodes = f" on {', '.join(known.nodes)}" if known.nodes else ""
        message = f"SLURM says {known.state}" + (f" ({known.reason})" if known.reason else "") + nodes
        if known.reason in _WAITED:
            message = f"{_WAITED[known.reason]}: {message}"
        return Exit.of(cause, message, iteration)
    if job.exited is not None:
        return written_end(job.exited)
    said = _word_of_the_ranks(run, job)
    if said is not None:
        return said
    how = f"with exit code {known.exit_code}" if known.exit_code else "without a word"
    return Exit.of("lost", f"the batch script ended {how}: see logs/launcher.log", iteration)


def _word_of_the_ranks(run: RunDir, job: SlurmRun) -> Exit | None:
    return by_word_of_the_ranks(run, str(job.launches[-1].launch_id)) if job.launches else None
