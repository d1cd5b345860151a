"""Which runs a folder has, and whether one changed since it was read: a few questions to the disk for each."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from orchestrator.files.slow_disks import answers
from orchestrator.files.stored_files import is_name
from orchestrator.launch.runs import RUN_ID
from orchestrator.run_directory.rundir import RunDir

Stat = tuple[int, int, int]
"""When it was changed (in nanoseconds), its size, its inode; zeros where it is missing."""
Signature = tuple[Stat, ...]
"""Of the event log, the measurements, the run directory, the lease and the checkpoints."""

MISSING: Stat = (0, 0, 0)
_RUN = RunDir(Path())
_PARTS = tuple(
    path.as_posix() for path in (_RUN.events_file, _RUN.metrics_file, _RUN.path, _RUN.lease, _RUN.checkpoints)
)
_FOLDER = _PARTS.index(".")
_SECONDS_BETWEEN_CHANGES = 2.0
"""Two changes may be that far apart and have the same time, on the coarsest disks."""


def signature(run: RunDir, known: Signature | None = None) -> Signature:
    """Changes whenever a summary may say something else, but for the passing of time and the scheduler's word. What
    the run did not have when it was `known` is not asked for while its folder has not changed.
    """
    return _signature(str(run.path), known)


def signatures_in(runs_dir: Path, known: Mapping[Path, Signature]) -> dict[Path, Signature]:
    """Every run under a folder with its signature. What may not be looked into, or is gone meanwhile, is passed over.
    Raises OSError where the folder itself cannot be listed.
    """
    try:
        names = [name for name in os.listdir(runs_dir) if is_name(name)]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    absolute = runs_dir.absolute()
    listed = answers(_listed, [f"{absolute}/{name}" for name in names])
    paths = [
        absolute / name / run_id
        for name, ids in zip(names, listed, strict=True)
        for run_id in ids
        if RUN_ID.fullmatch(run_id)
    ]
    found = answers(partial(_signature_of_run, known), paths)
    return {path: each for path, each in zip(paths, found, strict=True) if each is not None}


def is_certain(found: Signature) -> bool:
    """Whether a change after these times will have another: not of what was changed just now."""
    return max(changed for changed, _, _ in found) < (time.time() - _SECONDS_BETWEEN_CHANGES) * 1e9


def _signature_of_run(known: Mapping[Path, Signature], path: Path) -> Signature | None:
    """None for what is no run."""
    before = known.get(path)
    found = _signature(str(path), before)
    if before is not None and found[_FOLDER] == before[_FOLDER]:
        return found  # it has its spec, as it had then
    # Also a link that leads nowhere: a run whose spec cannot be read. False where asking fails.
    return found if os.path.lexists(f"{path}/resolved.json") else None


def _signature(path: str, known: Signature | None) -> Signature:
    folder = _stat(path)
    same = known if known is not None and known[_FOLDER] == folder else None
    return tuple(
        folder
        if number == _FOLDER
        else MISSING
        if same is not None and same[number] == MISSING
        else _stat(f"{path}/{part}")
        for number, part in enumerate(_PARTS)
    )


def _stat(path: str) -> Stat:
    try:
        found = os.stat(path)
    except OSError:
        return MISSING
    return found.st_mtime_ns, found.st_size, found.st_ino


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
