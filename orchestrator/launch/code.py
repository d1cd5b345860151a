"""Which code ran: the commits and uncommitted changes of the folder a run was started in and of this package."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orchestrator

MAX_DIFF_BYTES = 10_000_000
MAX_MODULES = 500
MAX_MODULE_BYTES = 1_000_000
"""Of untracked files only Python modules are kept, and no larger ones: what else lies about may be data or a secret."""
_SECONDS = 20


@dataclass(frozen=True)
class CodeState:
    """`record` goes to code.json, `diff` (all repositories one after the other, untracked modules too) to code.diff."""

    record: dict[str, Any]
    diff: bytes


def code_state(folder: Path, apart_from: Path | None = None, scratch: Path | None = None) -> CodeState:
    """The state of the repositories of `folder` and of this package; neither needs to be one, nor git to exist.

    `apart_from`: a folder whose untracked files are not looked at, the one of the runs. `scratch`: where there is room
    for a copy of an index of git, in place of the system's folder for temporary files.
    """
    roots: dict[str, str] = {}
    for used_by, place in (("working directory", folder), ("orchestrator", Path(orchestrator.__file__).parent)):
        top = git(place, "rev-parse", "--show-toplevel")
        if top:
            roots.setdefault(os.fsdecode(top).strip(), used_by)
    repositories, diffs = [], []
    for root, used_by in roots.items():
        place = Path(root)
        untracked = _untracked(place, apart_from, "--directory")
        modules = [name for name in _untracked(place, apart_from) if name.endswith(".py")]
        kept = [name for name in modules if _is_small(place / name)][:MAX_MODULES]
        diff = _diff(place, kept, scratch)
        repositories.append(
            {
                "used_by": used_by,
                "root": str(place),
                "commit": (git(place, "rev-parse", "HEAD") or b"none").decode().strip(),
                "dirty": bool(diff or untracked),
                "untracked": untracked,
                "diff_complete": len(diff) <= MAX_DIFF_BYTES and len(kept) == len(modules),
            }
        )
        if diff:
            diffs.append(os.fsencode(f"# {place}\n") + diff[:MAX_DIFF_BYTES])
    record = {"version": orchestrator.__version__, "repositories": repositories}
    return CodeState(record, b"\n".join(diffs))


def _untracked(root: Path, apart_from: Path | None, *options: str) -> list[str]:
    """What git neither tracks nor ignores: files, or with `--directory` folders in which nothing is tracked as one."""
    names = ["."]
    apart_from = apart_from.resolve() if apart_from is not None else root
    if apart_from.is_relative_to(root) and apart_from != root:
        names.append(f":(exclude,top,literal){apart_from.relative_to(root)}")
    said = git(root, "ls-files", "-z", "--others", "--exclude-standard", *options, "--", *names) or b""
    return [os.fsdecode(name) for name in said.split(b"\0") if name]


def _is_small(path: Path) -> bool:
    try:
        return path.lstat().st_size <= MAX_MODULE_BYTES
    except OSError:
        return False


def _diff(root: Path, untracked: list[str], scratch: Path | None) -> bytes:
    """Uncommitted changes, with those untracked files as new ones. The index of the repository is not touched."""
    plain = ("diff", "HEAD", "--binary")
    if not untracked:
        return git(root, *plain) or b""
    with tempfile.TemporaryDirectory(prefix="orchestrator-index-", dir=scratch) as folder:
        index = str(Path(folder, "index"))
        own = git(root, "rev-parse", "--path-format=absolute", "--git-path", "index")
        # It knows which files are unchanged; without it git reads them all. A file of the second in which the index was
        # written may have changed since: git looks into it, for as long as the copy has the index's own time.
        with contextlib.suppress(OSError):
            shutil.copy2(os.fsdecode(own or b"").removesuffix("\n"), index)
        git(root, "--literal-pathspecs", "add", "--intent-to-add", "--", *untracked, GIT_INDEX_FILE=index)
        return git(root, *plain, GIT_INDEX_FILE=index) or git(root, *plain) or b""


def git(folder: Path, *arguments: str, **environment: str) -> bytes | None:
    """What git prints; None where there is no git, no repository or no answer in time."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_SECONDS, check=False, env={**os.environ, **environment}
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
