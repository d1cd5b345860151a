"""What lies in a runs folder: RUNS_DIR/NAME/RUN_ID."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from orchestrator.files.slow_disks import answers
from orchestrator.files.stored_files import is_name

RUN_ID = re.compile(r"[0-9a-f]{8}(?:-\d+)?")
"""The name of a run directory."""
_SPEC = "resolved.json"


def places_of_runs(runs_dir: Path) -> list[str]:
    """The absolute paths of everything that is named like a run. What may not be looked into, or is gone meanwhile, is
    passed over. Raises OSError where the folder itself cannot be listed.
    """
    return [
        f"{runs_dir.absolute()}/{name}/{run_id}"
        for name, ids in _contents(runs_dir)
        for run_id in ids
        if RUN_ID.fullmatch(run_id)
    ]


def misplaced_runs(runs_dir: Path) -> list[str]:
    """What has the files of a run but not the place of one, so that no list has it: a copy that somebody made under
    another name. Relative to the folder, sorted. Raises OSError where the folder itself cannot be listed.
    """
    found: list[str] = []
    perhaps: list[str] = []
    for name, ids in _contents(runs_dir):
        if name.startswith("."):  # the trash, the index
            continue
        if _SPEC in ids:
            found.append(name)
        else:
            others = (each for each in ids if not RUN_ID.fullmatch(each))
            perhaps += [f"{name}/{each}" for each in others if is_name(each) and not each.startswith(".")]
    are_runs = answers(lambda place: os.path.lexists(f"{runs_dir}/{place}/{_SPEC}"), perhaps)
    return sorted([*found, *(place for place, is_run in zip(perhaps, are_runs, strict=True) if is_run)])


def _contents(runs_dir: Path) -> Iterator[tuple[str, list[str]]]:
    """What is in the folder of each job, by its name."""
    try:
        names = [name for name in os.listdir(runs_dir) if is_name(name)]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return iter(())
    return zip(names, answers(lambda name: _names_in(f"{runs_dir}/{name}"), names), strict=True)


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
