"""Which checkpoints of a run are kept, and which a save makes superfluous."""

from __future__ import annotations

import os
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from orchestrator.run_directory.checkpoints.commit_markers import COMMIT_FILE, Commit
from orchestrator.run_directory.rundir import RunDir


def outdated(
    commits: Sequence[Commit],
    saved: int,
    keep_last: int,
    keep_every: int | None,
    damaged: AbstractSet[int] = frozenset(),
) -> list[Commit]:
    """Those that a save at iteration `saved` makes superfluous.

    Later ones are neither counted nor removed: a course that this one replaces left them, and they may be damaged.
    Nor are those counted that are known to be `damaged`, which go when they are older than all that are kept.
    """
    oldest = oldest_kept(commits, saved, keep_last, damaged)
    return [
        commit
        for commit in commits
        if commit.iteration < oldest and (keep_every is None or commit.iteration % keep_every)
    ]


def oldest_kept(commits: Sequence[Commit], saved: int, keep_last: int, damaged: AbstractSet[int] = frozenset()) -> int:
    """The iteration of the first of the `keep_last` newest, of a save at iteration `saved` and before it; 0 while
    there are fewer.
    """
    whole = [commit.iteration for commit in commits if commit.iteration <= saved and commit.iteration not in damaged]
    return whole[-keep_last] if len(whole) >= keep_last else 0


def unfinished(run: RunDir, before: int) -> list[Path]:
    """Folders of checkpoints before an iteration whose marker was never written, or went with a removal that was
    interrupted. Saves are written elsewhere and put there whole, so that none of these will ever be finished.
    """
    return [path for iteration, path in run.checkpoint_dirs() if iteration < before and _lacks_marker(path)]


def _lacks_marker(path: Path) -> bool:
    """Only where that is certain: what a link leads to, or cannot be listed, may be whole."""
    try:
        return not path.is_symlink() and COMMIT_FILE not in os.listdir(path)
    except OSError:
        return False
