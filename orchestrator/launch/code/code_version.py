"""Which code ran: the commits and uncommitted changes of the folder a run was started in and of this package."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import version
from orchestrator.launch.code.sent_project import sent_project

MAX_DIFF_BYTES = 10_000_000
MAX_MODULES = 500
MAX_MODULE_BYTES = 1_000_000
"""Of untracked files only Python modules are kept, and no larger ones: what else lies about may be data or a secret."""
_SECONDS = 20
_SUBMODULE = re.compile(rb"(?:^|(?<=\0))160000 [^\t\0]*\t([^\0]*)")
"""In the list of an index whose entries end with a zero byte."""


@dataclass(frozen=True)
class CodeState:
    """`record` goes to code.json, `diff` (all repositories one after the other, untracked modules too) to code.diff."""

    record: dict[str, Any]
    diff: bytes


def code_state(folder: Path, apart_from: Path | None = None, scratch: Path | None = None) -> CodeState:
    """The state of the repositories of `folder` and of this package; neither needs to be one, nor git to exist.

    `apart_from`: a folder whose untracked files are not looked at, the one of the runs. `scratch`: where there is room
    for a copy of an index of git, in place of the system's folder for temporary files. Of a project that another
    machine has sent, it is the state there.
    """
    if (sent := sent_project()) is not None:
        return CodeState(json.loads(sent.read("code.json")), sent.read("code.diff"))
    roots: dict[str, str] = {}
    for used_by, place in (("working directory", folder), ("orchestrator", Path(version.__file__).parent)):
        top = git(place, "rev-parse", "--show-toplevel")
        if top:
            roots.setdefault(os.fsdecode(top).strip(), used_by)
    repositories: list[dict[str, Any]] = []
    diffs: list[bytes] = []
    for root, used_by in roots.items():
        inside = list(_submodules(Path(root)))
        states = [
            _state(place, name, apart_from, scratch)
            for place, name in [(Path(root), used_by), *((place, f"submodule {place.name}") for place in inside)]
        ]
        records = [record for record, _ in states]
        records[0]["dirty"] = any(record["dirty"] for record in records)
        repositories += records
        diffs += [diff for _, diff in states if diff]
    record = {"version": version.__version__, "repositories": repositories}
    return CodeState(record, b"\n".join(diffs))


def _state(place: Path, used_by: str, apart_from: Path | None, scratch: Path | None) -> tuple[dict[str, Any], bytes]:
    """What code.json says of one repository, and its part of code.diff."""
    untracked = _untracked(place, apart_from, "--directory")
    # The list names folders without what is in them.
    files = _untracked(place, apart_from) if any(name.endswith("/") for name in untracked) else untracked
    modules = [name for name in files if name.endswith(".py")]
    kept = [name for name in modules if _is_small(place / name)][:MAX_MODULES]
    diff = _diff(place, kept, scratch)
    record = {
        "used_by": used_by,
        "root": str(place),
        "commit": (git(place, "rev-parse", "HEAD") or b"none").decode().strip(),
        "dirty": bool(diff or untracked),
        "untracked": untracked,
        "diff_complete": len(diff) <= MAX_DIFF_BYTES and len(kept) == len(modules),
    }
    return record, os.fsencode(f"# {place}\n") + diff[:MAX_DIFF_BYTES] if diff else b""


def _submodules(root: Path) -> Iterator[Path]:
    """Repositories inside one that are checked out, and theirs. git would look into them with their own settings."""
    for entry in _SUBMODULE.finditer(git(root, "ls-files", "-z", "--stage") or b""):
        place = root / os.fsdecode(entry[1])
        if (place / ".git").exists() and not place.is_symlink():
            yield place
            yield from _submodules(place)


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
    options = _without_filters(root)
    if options is None:
        return b""
    plain = (*options, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty")
    if not untracked:
        return git(root, *plain) or b""
    with tempfile.TemporaryDirectory(prefix="orchestrator-index-", dir=scratch) as folder:
        index = str(Path(folder, "index"))
        own = git(root, "rev-parse", "--path-format=absolute", "--git-path", "index")
        # It knows which files are unchanged; without it git reads them all. A file of the second in which the index was
        # written may have changed since: git looks into it, for as long as the copy has the index's own time.
        with contextlib.suppress(OSError):
            shutil.copy2(os.fsdecode(own or b"").removesuffix("\n"), index)
        git(root, *options, "--literal-pathspecs", "add", "--intent-to-add", "--", *untracked, GIT_INDEX_FILE=index)
        return git(root, *plain, GIT_INDEX_FILE=index) or git(root, *plain) or b""


def _without_filters(root: Path) -> list[str] | None:
    """Options of git that leave filters of files (`filter.NAME.clean`) as this machine and its user have set them up,
    git-lfs for example, and take the repository's own away; None where these have names that no option can hold.
    """
    found = _filters(root)
    if not found:
        return []
    if any("=" in key for key in found):
        return None
    taken = {key: "false" if key.endswith(".required") else "" for key in found}
    trusted = _filters(root, "--system") | _filters(root, "--global")
    return [word for key, value in (taken | trusted).items() for word in ("-c", f"{key}={value}")]


def _filters(root: Path, *scope: str) -> dict[str, str]:
    said = git(root, "config", *scope, "--includes", "-z", "--get-regexp", r"^filter\.") or b""
    pairs = (os.fsdecode(each).partition("\n") for each in said.split(b"\0") if each)
    return {key: value for key, _, value in pairs}


def git(folder: Path, *arguments: str, **environment: str) -> bytes | None:
    """What git prints; None where there is no git, no repository or no answer in time.

    A repository's own settings may name programs: monitors of files, hooks, ways to other machines for what it lacks.
    The folder may come from anywhere, and none of them runs.
    """
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", *arguments]
    variables = {**os.environ, "GIT_ALLOW_PROTOCOL": "none", **environment}
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False, env=variables)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
