"""How much of the disk a run takes, without a look into its checkpoints: their markers have the sizes of all files."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

from orchestrator.run_directory.checkpoints.commit_markers import Commit
from orchestrator.run_directory.rundir import RunDir

_BLOCK_BYTES = 512
"""That `st_blocks` counts in, on any disk."""


def disk_use(run: RunDir, checkpoints: Iterable[Commit]) -> int:
    """Bytes: of committed checkpoints the sizes in their markers, of all else the blocks that it occupies, a file with
    several names once. What lies behind links is not counted, nor what cannot be looked into.
    """
    commits = {str(commit.path): commit.bytes for commit in checkpoints}
    return sum(commits.values()) + occupied(run.path, commits)


def occupied(folder: Path, left_out: Collection[str] = ()) -> int:
    """The blocks, in bytes, of all that is in a folder but for the folders that are left out."""
    total = 0
    seen: set[tuple[int, int]] = set()
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.path in left_out:
                        continue
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(entry.path)
                    if (found.st_dev, found.st_ino) not in seen:
                        seen.add((found.st_dev, found.st_ino))
                        total += found.st_blocks * _BLOCK_BYTES
        except OSError:  # gone meanwhile, or somebody else's
            continue
    return total
