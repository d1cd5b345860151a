"""The scheduler's client: jobs submitted, asked about, cancelled and put back into the queue with SLURM's own commands.

Only what SLURM 22.05 and everything after it have in common is used. Times are asked for in epoch seconds, so that no
time zone is guessed. Job names are never asked for: they can hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from orchestrator.errors import PerhapsSubmitted, SchedulerError, UserError
from orchestrator.executors.slurm.commands import SUBMIT_SECONDS, Answer, failure, run, unreachable, words_of
from orchestrator.executors.slurm.refusals import refusal
from orchestrator.fields.nodelist import expand_nodelist
from orchestrator.launch.executor_protocol import JobState, Warn

_CAUSES = {
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "OUT_OF_MEMORY": "host_out_of_memory",
    "CANCELLED": "cancelled",
}
"""Why SLURM ended a job that is in this state."""
_OVER = frozenset(("COMPLETED", "FAILED", "REVOKED", *_CAUSES))
"""States of a job that will not go on by itself."""
_WAITING = frozenset(("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"))
_STARTING = "CONFIGURING"
_DEPENDENCY = "DependencyNeverSatisfied"
_NEVER = ("PartitionTimeLimit", "PartitionNodeLimit", _DEPENDENCY, "BadConstraints")
"""Reasons that no waiting removes."""
_WAITED = {
    _DEPENDENCY: "the run that it waited for did not complete",
    "Dependency": "while it waited for another run",  # which sacct says of both, that end and a person's scancel
}

_JOB_ID = re.compile(r"(\d+)(?:_\d+)?", re.ASCII)
_SUBMITTED = re.compile(r"(\d+)(?:;.*)?", re.ASCII)
_NO_WORD_BACK = re.compile(r"timed out|Zero Bytes")
_PERHAPS_SUBMITTED = "The job may be in the queue nevertheless: look with `squeue --me` before you submit it again"
_ALREADY_OVER = re.compile(r"Invalid job id|already completing or completed|Job has already finished", re.IGNORECASE)
_MOST_IDS = 5000
"""In one call: an argument may have 128 kB."""

_SQUEUE_FIELDS = (
    *("JobArrayID", "State", "RestartCnt", "exit_code", "SubmitTime", "StartTime", "EndTime", "NodeList"),
    "Reason",  # last: it may hold anything
)
_SACCT_FIELDS = ("JobID", "State", "ExitCode", "Submit", "Start", "End", "NodeList", "Reason")


def submit(script: Path, arguments: Sequence[str] = (), warn: Warn = lambda message: None) -> str:
    """Submit a batch script with further options of sbatch; returns the job id. `warn` hears what else sbatch says.

    Raises UserError when SLURM refuses what is asked for and SchedulerError when it cannot be asked; of these,
    PerhapsSubmitted where the job may be in the queue nevertheless.
    """
    try:
        answer = run(["sbatch", "--parsable", *arguments, str(script)], seconds=SUBMIT_SECONDS)
    except SchedulerError as error:
        raise PerhapsSubmitted(f"{error}. {_PERHAPS_SUBMITTED}") from error
    if answer.code != 0:
        away = unreachable(answer)
        if away is not None and _NO_WORD_BACK.search(answer.err):
            raise PerhapsSubmitted(f"{away}. {_PERHAPS_SUBMITTED}")
        raise away or refusal(answer, script, arguments)
    for line in reversed(answer.out.splitlines()):
        if match := _SUBMITTED.fullmatch(line.strip()):
            if answer.err.strip():
                warn(f"sbatch: {words_of(answer)}")
            return match.group(1)
    raise PerhapsSubmitted(f"sbatch printed no job id but this: {words_of(answer)}. {_PERHAPS_SUBMITTED}")


def job_states(job_ids: Iterable[str], warn: Warn = lambda message: None) -> dict[str, JobState]:
    """What is known about jobs: one call of squeue, and one of sacct for those that it no longer knows.

    An array's own id brings all of its tasks, each under its own id. A job that nobody knows is absent, and so is one
    that only accounting believes to be running. `warn` hears that accounting could not be asked, which takes nothing
    from what squeue said. Raises SchedulerError when squeue cannot be asked. Beyond 5,000 ids there are more calls.
    """
    wanted = sorted({job_id for job_id in job_ids if _JOB_ID.fullmatch(job_id)})
    found: dict[str, JobState] = {}
    for first in range(0, len(wanted), _MOST_IDS):
        batch = wanted[first : first + _MOST_IDS]
        found.update((state.job_id, state) for state in _ask_squeue(batch))
        gone = [job_id for job_id in batch if job_id not in found]  # of an array, squeue may have forgotten some tasks
        for state in _ask_sacct(gone, warn):
            found.setdefault(state.job_id, state)
    return found


def cancel(job_ids: Iterable[str], signal: str | None = None) -> None:
    """End jobs, or send a signal to their batch shells alone, as `--signal=B:` does. One that is over stays so."""
    ids = sorted(set(job_ids))
    if not ids:
        return
    how = [] if signal is None else [f"--signal={signal}", "--batch"]
    answer = run(["scancel", *how, *ids])
    complaints = [line for line in answer.err.splitlines() if line.strip() and not _ALREADY_OVER.search(line)]
    if complaints or (answer.code != 0 and not answer.err.strip()):
        raise failure(Answer(answer.command, answer.code, "", "\n".join(complaints)))


def check_answers() -> None:
    """Raises UserError where jobs cannot be submitted from this machine, SchedulerError when SLURM does not answer."""
    for command in (["sbatch", "--version"], ["squeue", "--noheader", "--me", "--format=%i"]):
        answer = run(command)
        if answer.code != 0:
            raise failure(answer)


def _ask_squeue(job_ids: list[str]) -> Iterator[JobState]:
    columns = ",".join(f"{name}:|" for name in _SQUEUE_FIELDS)  # width 0: nothing is cut off
    options = ["--noheader", "--all", "--array", "--states=all", f"--Format={columns}"]
    answer = run(["squeue", *options, f"--jobs={','.join(job_ids)}"])
    if answer.code != 0:
        if "Invalid job id" in answer.err:
            return  # the only one asked about is not known
        raise failure(answer)
    for line in answer.out.splitlines():
        fields = [field.strip() for field in line.split("|", len(_SQUEUE_FIELDS) - 1)]
        if len(fields) == len(_SQUEUE_FIELDS) and _JOB_ID.fullmatch(fields[0]):
            job_id, state, restarts, status, submitted, started, ended, nodes, reason = fields
            exit_code = _exit_code(int(status) >> 8, int(status) & 0x7F) if status.isdecimal() else None
            count = int(restarts) if restarts.isdecimal() else 0
            yield _job_state(job_id, state, reason[:-1].strip(), nodes, exit_code, count, (submitted, started, ended))


def _ask_sacct(job_ids: list[str], warn: Warn) -> Iterator[JobState]:
    """Of jobs that are over. A job that was put back into the queue has a record for each time: the last one counts."""
    records: dict[str, list[list[str]]] = {}
    for line in _sacct_lines(job_ids, warn) if job_ids else ():
        fields = line.split("|", len(_SACCT_FIELDS) - 1)
        if len(fields) == len(_SACCT_FIELDS) and _JOB_ID.fullmatch(fields[0]):
            records.setdefault(fields[0], []).append(fields)
    for earlier in records.values():
        job_id, state, exit_code, submitted, started, ended, nodes, reason = max(earlier, key=lambda fields: fields[3])
        code, _, number = exit_code.partition(":")
        status = _exit_code(int(code), int(number)) if code.isdecimal() and number.isdecimal() else None
        # "CANCELLED by 1000"
        found = _job_state(
            job_id, state.split(" ")[0], reason, nodes, status, len(earlier) - 1, (submitted, started, ended)
        )
        if found.is_over:
            yield found


def _sacct_lines(job_ids: list[str], warn: Warn) -> list[str]:
    options = ["--noheader", "--parsable2", "--allocations", "--duplicates", f"--format={','.join(_SACCT_FIELDS)}"]
    try:
        answer = run(["sacct", *options, f"--jobs={','.join(job_ids)}"])
    except (SchedulerError, UserError) as error:
        if isinstance(error, SchedulerError):  # a UserError: this machine has no sacct
            warn(str(error))
        return []
    if answer.code != 0:
        if "accounting storage is disabled" not in answer.err:
            warn(str(failure(answer)))
        return []
    return answer.out.splitlines()


def _job_state(
    job_id: str, state: str, reason: str, nodes: str, exit_code: int | None, restarts: int, times: tuple[str, str, str]
) -> JobState:
    """Of the columns that squeue and sacct share. What lies in the future is an estimate, and left out."""
    names = tuple(_names(nodes))
    submitted, started, ended = (float(time) if time.isdecimal() else None for time in times)
    known_reason = None if reason in ("", "None", "(null)") else reason
    is_over = state in _OVER
    says = f"SLURM says {state}"
    return JobState(
        job_id=job_id,
        phase="over" if is_over else "waiting" if state in _WAITING or state == _STARTING else "running",
        state=state,
        reason=known_reason,
        nodes=names,
        exit_code=exit_code if is_over else None,
        restarts=restarts,
        submitted=submitted,
        started=started if names and state not in _WAITING else None,
        ended=ended if is_over else None,
        never_starts=known_reason in _NEVER,
        cause=_CAUSES.get(state),
        succeeded=state == "COMPLETED",
        says=f"{_WAITED[reason]}: {says}" if reason in _WAITED else says,
    )


def _names(nodes: str) -> list[str]:
    try:
        return expand_nodelist(nodes)
    except ValueError:
        return [nodes]  # one odd line must not hide all other jobs


def _exit_code(code: int, signal: int) -> int:
    return 128 + signal if signal else code
