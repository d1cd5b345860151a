"""What lies in a runs folder: RUNS_DIR/NAME/RUN_ID."""

from __future__ import annotations

import os
import re
from pathlib import Path

from orchestrator.files.slow_disks import answers
from orchestrator.files.stored_files import is_name

RUN_ID = re.compile(r"[0-9a-f]{8}(?:-\d+)?")
"""The name of a run directory."""


def places_of_runs(runs_dir: Path) -> list[str]:
    """The absolute paths of everything that is named like a run. What may not be looked into, or is gone meanwhile, is
    passed over. Raises OSError where the folder itself cannot be listed.
    """
    try:
        names = [name for name in os.listdir(runs_dir) if is_name(name)]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    folders = [f"{runs_dir.absolute()}/{name}" for name in names]
    found = zip(folders, answers(_names_in, folders), strict=True)
    return [f"{folder}/{run_id}" for folder, ids in found for run_id in ids if RUN_ID.fullmatch(run_id)]


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
