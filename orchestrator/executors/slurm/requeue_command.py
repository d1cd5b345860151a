"""Back into the queue under the same id: later, and not on the same nodes."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from orchestrator.errors import OrchestratorError, SchedulerError
from orchestrator.executors.slurm.client import job_states
from orchestrator.executors.slurm.commands import failure, run

_ATTEMPTS = 3
SECONDS_TO_INSIST = 600.0
SECONDS_BETWEEN_ATTEMPTS = 5.0
_ALREADY_WAITS = "Job is pending execution"
_STILL_ENDS = "Job has already finished"
"""Of a job that is put back and whose processes are not all gone yet: it waits once they are."""


def requeue(job_id: str) -> None:
    """End a running job, or take one that is over, and put it back into the queue under the same id.

    Raises SchedulerError.
    """
    _must_run(["scontrol", "requeue", job_id])


def requeue_later(job_id: str, restarts: int, delay: float = 0.0, exclude: Sequence[str] = ()) -> None:
    """Put a job back into the queue, to start after `delay` seconds and not on the nodes `exclude`.

    `restarts` is the caller's own count: a job that SLURM has started again since then is left alone. While the
    controller does not answer it is asked again for ten minutes. Called from inside the job: SLURM then ends its
    processes, these commands too, and leaves those that do not mind SIGTERM another KillWait seconds (30 by default).
    Raises SchedulerError.
    """
    deadline = time.monotonic() + SECONDS_TO_INSIST
    while True:
        try:
            known = job_states([job_id]).get(job_id)
            if known is not None and known.restarts > restarts:
                return
            requeue(job_id)
            break
        except SchedulerError:
            if time.monotonic() > deadline:
                raise
            time.sleep(SECONDS_BETWEEN_ATTEMPTS)
    changes = []
    if delay > 0:
        changes.append(f"StartTime=now+{round(delay)}")
    if exclude:
        changes.append(f"ExcNodeList={','.join(exclude)}")
    if changes:  # which SLURM takes only of a job that waits already
        _must_run(["scontrol", "update", f"JobId={job_id}", *changes], again_when_ended=True)


def _must_run(command: Sequence[str], *, again_when_ended: bool = False) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        answer = run(command)
        if answer.code == 0:
            return
        if _ALREADY_WAITS in answer.err:
            return  # SLURM has put it back by itself, after a node failed for example
        if again_when_ended and _STILL_ENDS in answer.err and attempt < _ATTEMPTS:
            time.sleep(SECONDS_BETWEEN_ATTEMPTS)
            continue
        if answer.code != -signal.SIGTERM:
            raise failure(answer)
        if not again_when_ended:
            return  # ended by what it brought about


def earlier_ends(job_id: str) -> list[str]:
    """How accounting calls the ends of a job's earlier starts, oldest first; none where there is no accounting."""
    try:
        answer = run(
            [
                "sacct",
                "--noheader",
                "--parsable2",
                "--allocations",
                "--duplicates",
                "--format=State",
                f"--jobs={job_id}",
            ]
        )
    except OrchestratorError:
        return []  # nothing depends on it but a better word
    return [line.split(" ")[0] for line in answer.out.splitlines()] if answer.code == 0 else []
