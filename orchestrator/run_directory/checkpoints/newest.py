"""The newest complete checkpoint of a run, and those that were passed over for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.run_directory.checkpoints.commit_markers import Commit, committed, read_commit, verify
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import CheckpointSaved, CheckpointSkipped, Resumed
from orchestrator.run_directory.rundir import RunDir, iteration_of


def passed_over(events: EventLog) -> dict[int, str]:
    """What was wrong with the checkpoints that starts passed over, by iteration, as a run's events tell it; those that
    were saved anew since, or gone on from, are not among them.
    """
    found: dict[int, str] = {}
    for event in events:
        if isinstance(event, CheckpointSkipped):
            iteration = iteration_of(Path(str(event.path)))
            if iteration is not None:
                found[iteration] = str(event.message)
        elif isinstance(event, CheckpointSaved | Resumed):
            found = {iteration: message for iteration, message in found.items() if iteration != event.iteration}
    return found


def latest_valid(
    run: RunDir,
    skipped: Callable[[Path, str], None] | None = None,
    findings_of: Callable[[Path], list[str]] = verify,
) -> Commit | None:
    """The newest checkpoint that is complete, by a full read. `skipped(path, message)` hears of each that is not."""
    for _, path in reversed(run.checkpoint_dirs()):
        findings = findings_of(path)
        if not findings:
            return read_commit(path)
        if skipped is not None:
            skipped(path, "; ".join(findings))
    return None


def begins_anew(run: RunDir, events: EventLog) -> bool:
    """Whether a run with these events was started before and has no checkpoint to go on from; damage is not looked
    for.
    """
    return events.was_started and not committed(run)
