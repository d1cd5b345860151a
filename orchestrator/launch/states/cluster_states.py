"""What state a run on a cluster is in: its own word where it had one, else the scheduler's, else its lease's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from orchestrator.errors import OrchestratorError
from orchestrator.launch.executor_protocol import JobState, states_of
from orchestrator.launch.states.state_words import (
    SECONDS_TO_TAKE_THE_LEASE,
    State,
    state_after,
    withdrawn_end,
    working_state,
    written_end,
)
from orchestrator.launch.states.submitted_job import SubmittedJob, failed_preparation, waiting_for
from orchestrator.run_directory.exits.causes import Exit, by_word_of_the_ranks
from orchestrator.run_directory.lease import Holder
from orchestrator.run_directory.rundir import RunDir


@dataclass(frozen=True)
class SchedulerReport:
    """What executors know of jobs, and in one line each why some could not be asked, by the name of the executor."""

    jobs: Mapping[tuple[str, str], JobState]
    """By the executor's name and the job's id."""
    troubles: Mapping[str, str] = field(default_factory=dict)

    def of(self, job: SubmittedJob, job_id: str | None = None) -> JobState | None:
        """What is known of the job of a run; of another one of its executor with `job_id`."""
        return self.jobs.get((job.executor, job_id or job.job_id))


def ask_the_schedulers(jobs: Iterable[SubmittedJob]) -> SchedulerReport:
    """What each executor says of its jobs that only it can tell of; it is asked once, and not at all about none."""
    wanted: dict[str, list[str]] = {}
    for job in jobs:
        wanted.setdefault(job.executor, []).extend(job.unsettled)
    known: dict[tuple[str, str], JobState] = {}
    troubles: dict[str, str] = {}
    for name, job_ids in wanted.items():
        try:
            states = states_of(name, job_ids, partial(troubles.setdefault, name)) if job_ids else {}
        except OrchestratorError as error:
            troubles[name] = str(error)
            continue
        known |= {(name, job_id): state for job_id, state in states.items()}
    return SchedulerReport(known, troubles)


def state_on_cluster(
    run: RunDir, job: SubmittedJob, holder: Holder | None, word: SchedulerReport
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
    known = word.of(job)
    if known is None:
        return _by_the_run_itself(run, job, holder, word.troubles.get(job.executor))
    where = f"job {job.job_id} on {job.cluster}"
    if known.is_waiting:
        if job.data is not None and not job.data.is_done and not job.launches:
            return "queued", None, f"{where}, {waiting_for(job.data, word.of(job, job.data.job_id))}"
        never = ": it can never start, cancel it" if known.never_starts else ""
        return "queued", None, where + (f", {known.reason}{never}" if known.reason else "")
    if not known.is_over:
        return working_state(run), None, where
    end = _unspoken_end(run, job, known)
    return state_after(end.cause), end, None


def _end_without_data(run: RunDir, job: SubmittedJob, word: SchedulerReport) -> Exit | None:
    """The end of a job that never started because its data could not be made."""
    if job.data is None or job.launches:
        return None
    forgotten = job.executor not in word.troubles and word.of(job) is None
    return failed_preparation(run, job.data, word.of(job, job.data.job_id), forgotten=forgotten)


def _by_the_run_itself(
    run: RunDir, job: SubmittedJob, holder: Holder | None, trouble: str | None
) -> tuple[State, Exit | None, str | None]:
    """For a job that the scheduler says nothing of."""
    reason = f"job {job.job_id} on {job.cluster}, according to the run directory" + (f" ({trouble})" if trouble else "")
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


def _unspoken_end(run: RunDir, job: SubmittedJob, known: JobState) -> Exit:
    """The end of a job that is over, of which the run itself has not said the last word."""
    iteration = job.exited.iteration if job.exited is not None else None
    if known.cause is not None:
        nodes = f" on {', '.join(known.nodes)}" if known.nodes else ""
        return Exit.of(known.cause, known.says + (f" ({known.reason})" if known.reason else "") + nodes, iteration)
    if job.exited is not None:
        return written_end(job.exited)
    said = _word_of_the_ranks(run, job)
    if said is not None:
        return said
    how = f"with exit code {known.exit_code}" if known.exit_code else "without a word"
    return Exit.of("lost", f"the batch script ended {how}: see logs/launcher.log", iteration)


def _word_of_the_ranks(run: RunDir, job: SubmittedJob) -> Exit | None:
    return by_word_of_the_ranks(run, str(job.launches[-1].launch_id)) if job.launches else None
