"""Finding the newest whole checkpoint, with the reading of its bytes shared by all ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import CheckpointError
from orchestrator.run_directory.checkpoints.commit_markers import Commit, read_commit, verify
from orchestrator.run_directory.checkpoints.newest import latest_valid
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.runtime.processes.rank_agreement import Control


def newest_whole(
    run: RunDir, control: Control, ranks: Ranks, skipped: Callable[[Path, str], None] | None = None
) -> Commit | None:
    """The newest checkpoint that is complete, on every rank; collective. `skipped(path, message)` is called on rank
    0."""
    commit = None
    if ranks.is_first:
        commit = latest_valid(run, skipped, lambda path: verify_together(path, control, ranks))
        control.from_first(None)
    else:
        while (path := control.from_first(None)) is not None:
            _check_part(path, control, ranks)
    found: Commit | None = control.from_first(commit)
    return found


def require_whole(run: RunDir, iteration: int, control: Control, ranks: Ranks) -> Commit:
    """The checkpoint of an iteration, on every rank; collective.

    Raises CheckpointError, on all ranks, with what is wrong with it.
    """
    return require_whole_at(run.checkpoint(iteration), control, ranks)


def require_whole_at(path: Path, control: Control, ranks: Ranks) -> Commit:
    """The checkpoint in a folder, on every rank; collective. Raises CheckpointError, on all ranks, as above."""
    findings = _check_part(path, control, ranks)
    found: Commit | list[str] = control.from_first(findings or read_commit(path))
    if not isinstance(found, Commit):
        raise CheckpointError("; ".join(found), code="damaged_checkpoint")
    return found


def verify_together(path: Path, control: Control, ranks: Ranks) -> list[str]:
    """What is wrong with a checkpoint. On rank 0, while the others wait in `newest_whole` for a path to check."""
    control.from_first(path)
    return _check_part(path, control, ranks)


def _check_part(path: Path, control: Control, ranks: Ranks) -> list[str]:
    """All ranks' findings on rank 0."""
    reports = control.gather_to_first(verify(path, part=(ranks.rank, ranks.world_size)))
    return sorted({finding for report in reports or [] for finding in report})
