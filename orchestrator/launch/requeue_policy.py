"""What to do after a start of a run has ended: stop, or start it again, and how. On a cluster it goes back into the
queue; on this machine its launcher starts it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import CheckpointSaved, Exited, Requeued
from orchestrator.run_directory.exits.causes import Exit
from orchestrator.spec.sections.launch import Action, LaunchSpec

DEFAULT_ACTIONS: Mapping[str, Action] = {
    "time_limit": "requeue",
    "preempted": "requeue",
    "node_fail": "requeue_elsewhere",
    "nccl_error": "requeue_elsewhere",
    "gpu_error": "requeue_elsewhere",
    "hang": "requeue",
    "killed": "requeue",
    "lost": "requeue",
    "out_of_memory": "stop",
    "host_out_of_memory": "stop",
    "nan": "stop",
    "checkpoint": "stop",
    "disk_full": "stop",
    "bug": "stop",
}
"""A fault of the machine goes away elsewhere or later; a fault of the job comes back."""

NO_FAILURE = ("time_limit", "preempted")
_MOST_FAILURES_WITHOUT_PROGRESS = 5
_MOST_DOUBLINGS = 4


@dataclass(frozen=True)
class Decision:
    """`requeue` with a delay in seconds and without some nodes, or a stop; `reason` is one line for people."""

    requeue: bool
    reason: str
    delay: float = 0.0
    exclude: tuple[str, ...] = ()
    withdrawn_by: str | None = None
    """The person who keeps the run from a start that it would have had."""


def decide(launch: LaunchSpec, end: Exit, events: EventLog) -> Decision:
    """What to do after `end`. `events` are the run's so far, the `exited` event of this end included."""
    if end.cause in ("completed", "stopped", "cancelled"):
        return Decision(False, "nothing is left to do" if end.cause == "completed" else "a person asked for it")
    if end.cause == "requeued":
        return Decision(False, "SLURM requeued it")
    actions = {**DEFAULT_ACTIONS, **{str(cause): action for cause, action in launch.on_failure.items()}}
    action = actions.get(end.cause, "stop")
    if action == "stop":
        return Decision(False, f"after {end.cause} a run is not restarted (launch.on_failure)")
    mine = events.since_submission()
    requeues = len(mine.all(Requeued))
    if requeues >= launch.max_requeues:
        return Decision(False, f"it was restarted {requeues} times (launch.max_requeues)")
    if end.cause in NO_FAILURE:
        return Decision(True, end.cause)
    failures = failures_without_progress(mine)
    if failures >= _MOST_FAILURES_WITHOUT_PROGRESS:
        return Decision(False, f"{failures} failures in a row without a new checkpoint")
    return Decision(
        True,
        end.cause,
        delay=float(launch.requeue_delay * 2 ** min(max(failures - 1, 0), _MOST_DOUBLINGS)),
        exclude=nodes_at_fault(mine) if action == "requeue_elsewhere" else (),
    )


def unless_withdrawn(decision: Decision, by: str | None) -> Decision:
    """The same, unless a person (`by`) has asked for a stop: then no run starts again."""
    return (
        Decision(False, "a person asked for it", withdrawn_by=by) if decision.requeue and by is not None else decision
    )


def failures_without_progress(events: EventLog) -> int:
    """Failures since the last new checkpoint; ends that are no failures are passed over."""
    count = 0
    for event in reversed(events):
        if isinstance(event, CheckpointSaved):
            break
        count += isinstance(event, Exited) and event.cause not in NO_FAILURE
    return count


def nodes_at_fault(events: EventLog) -> tuple[str, ...]:
    """Every node that an exit of this job was blamed on."""
    blamed = (exited.node for exited in events.all(Exited) if exited.node)
    return tuple(sorted({node for nodes in blamed for node in nodes.split(",")}))
