"""A folder that appears under its name when it is complete, and that one process at a time makes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.data.indexed_dataset.locking import locked
from orchestrator.errors import DataIsHeld, JobError, UserError
from orchestrator.quantities import disk_size
from orchestrator.run_directory.rundir import sync_folder, sync_tree


def draft_of(target: Path) -> Path:
    """What lies beside a folder while it is made."""
    return target.with_name(f".{target.name}.export")


@contextmanager
def drafted(target: Path) -> Iterator[Path]:
    """An empty folder to fill, which is durable and has the name `target` afterwards; an error leaves nothing of it.

    Raises UserError when something is there already, or another process is making it.
    """
    require_free(target)
    beside = draft_of(target)
    try:
        with locked(beside, wait=False):
            try:
                # What a killed one has left goes first.
                draft = beside / "draft"
                shutil.rmtree(draft, ignore_errors=True)
                draft.mkdir()
                yield draft
                sync_tree(draft)
                require_free(target)
                os.rename(draft, target)
                sync_folder(target.parent)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
    except DataIsHeld as error:
        raise UserError(
            f"another process is writing {target} now; wait for it, or name another folder", code="output_is_held"
        ) from error


def require_free(target: Path) -> None:
    """Raises UserError where something is already."""
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise UserError(f"{target} already exists: name another folder", code="output_exists")


def require_room(target: Path, needed: int, leave_free: int = 0) -> None:
    """Raises JobError where a disk has less room than is needed and is to be left."""
    there = next(folder for folder in target.absolute().parents if folder.is_dir())
    free = shutil.disk_usage(there).free
    if needed + leave_free > free:
        also = f", of which {disk_size(leave_free)} are to be left" if leave_free else ""
        raise JobError(
            f"no room for {target}: it takes {disk_size(needed)}, {there} has {disk_size(free)}{also}", code="disk_full"
        )
