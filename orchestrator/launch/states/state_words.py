"""The states of a run, and what a written end says."""

from __future__ import annotations

from typing import Literal

from orchestrator.run_directory.events.types import Exited
from orchestrator.run_directory.exits.causes import Exit, cause_of
from orchestrator.run_directory.rundir import RunDir

State = Literal[
    "created", "imported", "queued", "running", "stopping", "completed", "stopped", "cancelled", "failed", "lost"
]

SECONDS_TO_TAKE_THE_LEASE = 600.0
"""In which a start that was launched may still be on its way."""

_STATES: dict[str, State] = {
    "completed": "completed",
    "stopped": "stopped",
    "cancelled": "cancelled",
    "lost": "lost",
}


def state_after(cause: str) -> State:
    """The state of a run whose last start ended so."""
    return _STATES.get(cause, "failed")


def working_state(run: RunDir) -> State:
    """The state of a run that some process works on."""
    return "stopping" if run.stop_file.exists() else "running"


def withdrawn_end(before: Exit | None) -> Exit:
    """The end of a run that a person kept from starting, or from starting again after the end `before`."""
    if before is None:
        return Exit.of("cancelled", "taken out of the queue", None)
    message = f"it was not restarted after this: {cause_of(before.cause).sentence}"
    return Exit.of("cancelled", message, before.iteration)


def written_end(exited: Exited) -> Exit:
    """The end that an event tells of."""
    return Exit(str(exited.cause), exited.message or "", exited.iteration, 0, exited.evidence or (), exited.node)
