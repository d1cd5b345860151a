"""Which runs a folder has, and whether one changed since it was read: a few questions to the disk for each."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from orchestrator.files.slow_disks import answers
from orchestrator.run_directory.rundir import RunDir
from orchestrator.run_directory.runs_folder import places_of_runs

Stat = tuple[int, int, int]
"""When it was changed (in nanoseconds), its size, its inode; zeros where it is missing."""
Signature = tuple[Stat, Stat, Stat, Stat, Stat]
"""Of the event log, the measurements, the run directory, the lease and the checkpoints."""

MISSING: Stat = (0, 0, 0)
_RUN = RunDir(Path())
_EVENTS, _METRICS, _LEASE, _CHECKPOINTS = (
    path.as_posix() for path in (_RUN.events_file, _RUN.metrics_file, _RUN.lease, _RUN.checkpoints)
)
_SECONDS_BETWEEN_CHANGES = 2.0
"""Two changes may be that far apart and have the same time, on the coarsest disks."""


def signature(run: RunDir) -> Signature:
    """Changes whenever a summary may say something else, but for the passing of time and the scheduler's word."""
    return _signature(str(run.path))


def signatures_in(runs_dir: Path, settled: Mapping[str, Signature]) -> dict[str, Signature]:
    """Every run under a folder, by its absolute path, with its signature. `settled`: of those that nothing but a change
    of their files can change, as they were. What may not be looked into, or is gone meanwhile, is passed over. Raises
    OSError where the folder itself cannot be listed.
    """
    paths = places_of_runs(runs_dir)
    found = answers(lambda path: _signature_of_run(path, settled.get(path)), paths)
    return {path: each for path, each in zip(paths, found, strict=True) if each is not None}


def is_certain(found: Signature) -> bool:
    """Whether a change after these times will have another: not of what was changed just now."""
    return max(changed for changed, _, _ in found) < (time.time() - _SECONDS_BETWEEN_CHANGES) * 1e9


def _signature_of_run(path: str, settled: Signature | None) -> Signature | None:
    """None for what is no run. Of a settled one whose folder has not changed only that is asked for that can have
    changed: what was not there is not, and nobody takes the lease without an event.
    """
    if settled is not None:
        events, metrics, folder, lease, checkpoints = settled
        if _stat(path) == folder:
            return (
                _stat(f"{path}/{_EVENTS}") if events != MISSING else MISSING,
                _stat(f"{path}/{_METRICS}") if metrics != MISSING else MISSING,
                folder,
                lease,
                _stat(f"{path}/{_CHECKPOINTS}") if checkpoints != MISSING else MISSING,
            )
    # Also a link that leads nowhere: a run whose spec cannot be read. False where asking fails.
    return _signature(path) if os.path.lexists(f"{path}/resolved.json") else None


def _signature(path: str) -> Signature:
    return (
        _stat(f"{path}/{_EVENTS}"),
        _stat(f"{path}/{_METRICS}"),
        _stat(path),
        _stat(f"{path}/{_LEASE}"),
        _stat(f"{path}/{_CHECKPOINTS}"),
    )


def _stat(path: str) -> Stat:
    try:
        found = os.stat(path)
    except OSError:
        return MISSING
    return found.st_mtime_ns, found.st_size, found.st_ino
