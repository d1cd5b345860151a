"""What the processes of a test run have in common, made by the first of them that asks for it."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """`make` fills an empty folder; a process that comes meanwhile waits for that, and later ones find it complete."""
    folder.mkdir(exist_ok=True)
    content, complete = folder / "content", folder / "complete"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(content, ignore_errors=True)
            content.mkdir()
            make(content)
            complete.touch()
    return content
