"""Folders of checkpoints that are not there yet, or no longer: their names say that they are none."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from orchestrator.run_directory.checkpoints.commit_markers import COMMIT_FILE
from orchestrator.run_directory.rundir import sync_folder


def draft_of(path: Path, token: int) -> Path:
    """Where the incarnation with this fencing token writes the checkpoint that will be `path`."""
    return path.with_name(_name(path.name, f"{token:06d}"))


def drafts_beside(path: Path) -> Iterator[Path]:
    """Every draft in a folder of checkpoints: of this incarnation and of others, and what is left of removed ones."""
    return path.parent.glob(_name("*", "*"))


def _name(name: str, token: str) -> str:
    return f".{name}.{token}.draft"


def put_in_place(draft: Path, path: Path) -> None:
    """Rename a whole checkpoint to its name; what stood there, damaged or of an abandoned course, goes first."""
    if path.exists():
        (path / COMMIT_FILE).unlink(missing_ok=True)  # so that it never looks committed while it goes
        shutil.rmtree(path)
    draft.rename(path)
    sync_folder(path.parent)


class Removals:
    """Checkpoints that are being removed. The disk takes seconds for 100 GB, which no training waits for."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, path: Path, token: int) -> None:
        """Remove a checkpoint: it is none at once. Raises OSError. What cannot be removed is left as a draft."""
        gone = draft_of(path, token)
        path.rename(gone)
        self._threads.append(threading.Thread(target=shutil.rmtree, args=(gone, True), name="checkpoint-removal"))
        self._threads[-1].start()

    def wait(self) -> None:
        """Until all are gone."""
        while self._threads:
            self._threads.pop().join()
