"""The files of a folder that a person names, and of those below it: links to folders are followed, none is read twice.

What cannot be read is named, for those who have to be told of it.
"""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LeftOut:
    """Something in a folder that was not read, and why."""

    path: Path
    reason: str
    is_read: bool = False
    """Whether all that is in it was read by another way: a link back, or to a folder that has been read."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclasses.dataclass
class FolderTree:
    """What is in a folder and below it."""

    files: list[Path] = dataclasses.field(default_factory=list)
    """In the order of their paths."""
    left_out: list[LeftOut] = dataclasses.field(default_factory=list)


def folder_tree(root: Path, wanted: Callable[[Path], bool] = lambda path: True) -> FolderTree:
    """All that is `wanted` (a path below the root, of a file or a folder) in a folder and below.

    Folders are told apart by device and inode. Those that are really there come before those that links lead to, so
    that a link into the same tree adds nothing. Raises OSError where the root itself cannot be read.
    """
    tree = FolderTree()
    seen: dict[tuple[int, int], Path] = {}
    folders, links = deque([root]), deque[Path]()
    while folders or links:
        folder = folders.popleft() if folders else links.popleft()
        try:
            status = folder.stat()
            known = seen.setdefault((status.st_dev, status.st_ino), folder)
            if known != folder:
                tree.left_out.append(LeftOut(folder, _why_known(folder, known), is_read=True))
                continue
            names = sorted(os.listdir(folder))
        except OSError as error:
            if folder == root:
                raise
            tree.left_out.append(LeftOut(folder, f"this folder cannot be read: {error.strerror}"))
            continue
        for path in filter(wanted, (folder / name for name in names)):
            if os.path.isdir(path):  # unlike that of Path, False where it cannot be reached
                (links if path.is_symlink() else folders).append(path)
            elif os.path.isfile(path):
                tree.files.append(path)
            else:
                tree.left_out.append(LeftOut(path, _why_not_a_file(path)))
    tree.files.sort()
    tree.left_out.sort(key=lambda each: each.path)
    return tree


def _why_known(folder: Path, known: Path) -> str:
    where = "back to" if known in folder.parents else "to"
    return f"it leads {where} {known}, which has already been read"


def _why_not_a_file(path: Path) -> str:
    if not path.is_symlink():
        return "it is neither a file nor a folder, or cannot be reached"
    return f"this link leads to {os.readlink(path)}, which does not exist, is not a file, or cannot be reached"
