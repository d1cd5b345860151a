"""Back into the queue under the same id: later, and not on the same nodes."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.cluster.commands import failure, run
from orchestrator.cluster.slurm import requeue
from orchestrator.errors import OrchestratorError


def requeue_later(job_id: str, delay: float = 0.0, exclude: Sequence[str] = ()) -> None:
    """Put a job back into the queue, to start after `delay` seconds and not on the nodes `exclude`.

    SLURM takes both only of a job that waits already, and from then on ends whoever asks from inside the job; it leaves
    them KillWait seconds (30 by default), which is ample. Raises SchedulerError.
    """
    requeue(job_id)
    changes = []
    if delay > 0:
        changes.append(f"StartTime=now+{round(delay)}")
    if exclude:
        changes.append(f"ExcNodeList={','.join(exclude)}")
    if changes:
        answer = run(["scontrol", "update", f"JobId={job_id}", *changes])
        if answer.code != 0:
            raise failure(answer)


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
