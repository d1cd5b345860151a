"""The files of a git repository that are code: what git tracks or does not ignore."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.launch.code.code_version import git
from orchestrator.quantities import disk_size

_SHOWN = 3


def repository_of(folder: Path) -> Path | None:
    """The root of the repository that a folder is in; None where git finds none."""
    top = git(folder, "rev-parse", "--show-toplevel")
    return None if top is None else Path(os.fsdecode(top).removesuffix("\n")).resolve()


def listed(root: Path, *options: str) -> list[str]:
    """Names that `git ls-files` gives, relative to the root and without a last slash; of repositories inside it too.

    Raises UserError where git fails.
    """
    said = git(root, "ls-files", "-z", *options)
    if said is None:
        raise UserError(f"git cannot list the files of {root}; what does `git status` say there?", code="failed_git")
    found: list[str] = []
    for name in dict.fromkeys(os.fsdecode(each).rstrip("/") for each in said.split(b"\0") if each):
        inside = root / name
        if (inside / ".git").exists() and not inside.is_symlink():  # a submodule, or another repository
            found += [f"{name}/{each}" for each in listed(inside, *options)]
        else:
            found.append(name)
    return found


def check_size(root: Path, names: Iterable[str], most_bytes: int, most_files: int, what: str) -> None:
    """Raises UserError, naming what is largest, when these files are more than code can be. `what`: who takes them."""
    sizes: Counter[str] = Counter()
    for name in names:
        try:
            sizes[name] = (root / name).lstat().st_size
        except FileNotFoundError:
            continue
    total = sizes.total()
    if total <= most_bytes and len(sizes) <= most_files:
        return
    folders: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name, size in sizes.items():
        top = name.partition("/")[0]
        folders[top] += size
        counts[top] += 1
    largest = folders if total > most_bytes else counts
    shown = ", ".join(
        f"{name} ({disk_size(folders[name])}, {counts[name]} files)" for name, _ in largest.most_common(_SHOWN)
    )
    raise UserError(
        f"{what}: {root} holds {disk_size(total)} in {len(sizes)} files that git does not ignore; "
        f"at most {disk_size(most_bytes)} and {most_files} files are taken.\n"
        f"      The largest: {shown}. Name what is not code in .gitignore.",
        code="repository_too_large",
    )
